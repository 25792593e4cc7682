"""The recipes that the package ships: their data as they lie on a machine, their models."""

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

from headrace.errors import DataError
from headrace.recipes import fashion_mnist, stdlib_gpt
from headrace.recipes.models import byte_gpt, convolutional_net, generate, next_byte_loss
from tests.commands import headrace

PACKAGED = Path("/usr/share/datasets/fashion-mnist")
IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def write_idx(path, array):
    """A gzipped IDX file, written from the format's description on the MNIST page."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Forty images and labels, packed as Debian does it, and an empty cache folder."""
    random = numpy.random.default_rng(0)
    folder = tmp_path / "packed"
    folder.mkdir()
    for part in ("train", "t10k"):
        images = random.integers(0, 256, (40, 28, 28), numpy.uint8)
        labels = random.integers(0, 10, 40, numpy.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FASHION_MNIST", str(folder))
    return folder


def test_the_files_are_unpacked_once(folder, tmp_path, capsys):
    """Into the cache folder, which is said; the second time they are there."""
    cache = tmp_path / "cache" / "headrace" / "fashion-mnist"

    records = fashion_mnist.data("t10k")

    assert len(records) == 40
    assert (records.fields["image"].shape, records.fields["label"].shape) == ((28, 28), ())
    assert sorted(path.name for path in cache.iterdir()) == [IMAGES, LABELS]
    assert (cache / IMAGES).read_bytes() == gzip.decompress((folder / f"{IMAGES}.gz").read_bytes())
    assert capsys.readouterr().out == (
        f"unpacking {folder}/{IMAGES}.gz into {cache}, once\n"
        f"unpacking {folder}/{LABELS}.gz into {cache}, once\n"
    )
    fashion_mnist.data("t10k")
    assert capsys.readouterr().out == ""


def test_unpacked_files_are_read_where_they_are(folder, tmp_path):
    """A folder without gzip: nothing is copied."""
    (folder / IMAGES).write_bytes(gzip.decompress((folder / f"{IMAGES}.gz").read_bytes()))

    assert fashion_mnist.unpacked(IMAGES) == folder / IMAGES
    assert not (tmp_path / "cache").exists()


def test_the_files_are_absent(tmp_path, monkeypatch):
    """How to get them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("FASHION_MNIST", str(tmp_path / "nowhere"))

    with pytest.raises(DataError) as caught:
        fashion_mnist.unpacked(IMAGES)

    assert str(caught.value) == (
        f"Fashion-MNIST is not on this machine: got no {tmp_path}/nowhere/{IMAGES}.gz; "
        "apt-get install dataset-fashion-mnist; or fetch the four files from "
        "github.com/zalandoresearch/fashion-mnist and set FASHION_MNIST to their folder"
    )


def test_a_damaged_file(folder, tmp_path):
    """Which; nothing is left in the cache."""
    packed = folder / f"{IMAGES}.gz"
    packed.write_bytes(packed.read_bytes()[:-9])

    with pytest.raises(DataError, match=f"{packed} cannot be unpacked into .*: got EOFError: "):
        fashion_mnist.unpacked(IMAGES)

    assert list((tmp_path / "cache" / "headrace" / "fashion-mnist").iterdir()) == []


def test_two_processes_unpack_at_once(folder, tmp_path):
    """Both have the whole file."""
    write_idx(folder / f"{IMAGES}.gz", numpy.zeros((20_000, 28, 28), numpy.uint8))
    code = (
        "from headrace.recipes.fashion_mnist import unpacked; print('ready', flush=True); input(); "
        f"print(unpacked({IMAGES!r}).stat().st_size)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for _ in range(2)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    outs = [process.communicate(timeout=60)[0] for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert all(out.startswith("unpacking") for out in outs)  # neither came after the other
    assert [out.splitlines()[-1] for out in outs] == [str(16 + 20_000 * 784)] * 2
    assert os.listdir(tmp_path / "cache" / "headrace" / "fashion-mnist") == [IMAGES]


def test_the_recipe_trains(folder, tmp_path):
    """By its name on the command line; the accuracy stands at the end of every epoch."""
    options = ("--simulate", "--epochs", 2, "--cuts", 4, "--out", "run", "--json")

    ended = headrace("train", "fashion_mnist", *options, cwd=tmp_path)

    assert (ended.status, ended.err) == (0, "")
    epochs = [line for line in ended.out.splitlines() if line.startswith("epoch ")]
    assert [line.split(":")[0] for line in epochs] == ["epoch 1", "epoch 2"]
    assert all("accuracy 0." in line for line in epochs)
    assert ended.results["bytes_read"] == {"0": 2 * 40 * 28 * 28, "1": 2 * 40}


@pytest.mark.slow
@pytest.mark.skipif(not PACKAGED.exists(), reason="dataset-fashion-mnist is not installed")
def test_one_epoch_of_the_real_data_set(tmp_path):
    """Two processes; more than 80 % of the test images are told apart after one epoch."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}

    ended = headrace(
        "train", "fashion_mnist", "--epochs", 1, "--out", "run", "--json",
        cwd=tmp_path, environment=environment, timeout_s=600,
    )  # fmt: skip

    assert (ended.status, ended.err) == (0, "")
    assert ended.results["records"] == 60_000
    assert ended.results["accuracy"] > 0.8


def test_the_convolutional_net():
    """Images of bytes in, a number a class out; a gradient reaches every weight."""
    model = convolutional_net()

    output = model(torch.zeros(3, 28, 28, dtype=torch.uint8))
    fashion_mnist.loss(output, torch.tensor([0, 1, 9], dtype=torch.uint8)).backward()

    assert output.shape == (3, 10)
    assert all(parameter.grad is not None for parameter in model.parameters())
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert fashion_mnist.num_correct(logits, torch.tensor([1, 1, 1])) == 2


def test_the_gpt():
    """A distribution of the next byte at each place, which what comes later does not change."""
    torch.manual_seed(0)
    model = byte_gpt(width=32, num_blocks=2, num_heads=4, max_length=16)
    text = torch.randint(0, 256, (2, 16), dtype=torch.uint8)
    changed = text.clone()
    changed[:, 10:] += 1

    output = model(text)

    assert output.shape == (2, 16, 256)
    assert torch.allclose(output[:, :10], model(changed)[:, :10], atol=1e-6)
    assert not torch.allclose(output[:, 10:], model(changed)[:, 10:], atol=1e-3)
    # the mean over all bytes of -log of the probability given to each
    likelihood = output.softmax(2)[torch.arange(2)[:, None], torch.arange(16), text.long()]
    assert next_byte_loss(output, text).item() == pytest.approx(-likelihood.log().mean().item())


def test_generate():
    """As many bytes as asked for, the same for the same seed, beyond the model's length too."""
    torch.manual_seed(0)
    model = byte_gpt(width=32, num_blocks=1, num_heads=2, max_length=8).eval()

    text = generate(model, b"ab", 20, max_length=8)

    assert len(text) == 22 and text.startswith(b"ab")
    assert generate(model, b"ab", 20, max_length=8) == text
    assert generate(model, b"ab", 20, max_length=8, seed=1) != text


def test_the_standard_library_as_records():
    """Windows of real source files, in place, about as many as wanted; no tests among them."""
    records = stdlib_gpt.data()

    assert stdlib_gpt.NUM_WINDOWS * 0.9 < len(records) < stdlib_gpt.NUM_WINDOWS * 1.2
    assert records.fields["window"].shape == records.fields["next"].shape == (stdlib_gpt.LENGTH,)
    names = {path.name for path in records.paths}
    assert {"argparse.py", "typing.py"} <= names
    assert not any("test" in path.parts for path in records.paths)
