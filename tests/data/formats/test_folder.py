"""Folders of files, against os.walk and plain reads."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest

import headrace
from headrace.errors import DataError, ReadError
from tests.data.formats.epochs import ENGINES, epoch


def fill(folder, names, seed=0):
    """Files of random bytes, 0 to 9000 of them."""
    generator = np.random.default_rng(seed)
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(generator.bytes(int(generator.integers(9000))))


def walked(folder):
    """(class, path) of all files below the sub-folders, by os.walk."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(".") or not os.path.isdir(folder / name):
            continue
        inside = []
        for root, folders, files in os.walk(folder / name, followlinks=True):
            folders[:] = [one for one in folders if not one.startswith(".")]
            inside += [os.path.join(root, one) for one in files if not one.startswith(".")]
        found += [(name, path) for path in sorted(inside)]
    return found


CATS = ["cat/2.jpg", "cat/10.jpg", "cat/deep/er/1.jpg", "cat/deep.jpg", "cat/.hidden"]
OTHERS = ["dog/a.jpg", "ant/x", "ant/y", "Bee/z", ".git/config", "dog/.cache/b.jpg"]


@pytest.mark.parametrize("engine", ENGINES)
def test_classes_are_folders(tmp_path, engine):
    """Every file once, whole, with the number of its class; hidden ones are not looked at."""
    fill(tmp_path, CATS + OTHERS)
    truth = walked(tmp_path)

    records = headrace.open(tmp_path)
    indices, batch = epoch(records, engine, batch_size=3)

    assert [os.fspath(path) for path in records.paths] == [path for _, path in truth]
    assert len(records) == 8
    assert records.fields["label"].about["classes"] == ["Bee", "ant", "cat", "dog"]
    classes = records.fields["label"].about["classes"]
    assert batch["label"].dtype == np.int64
    assert [classes[label] for label in batch["label"]] == [truth[i][0] for i in indices]
    for content, index in zip(batch["file"], indices, strict=True):
        with open(truth[index][1], "rb") as file:
            assert content == file.read()


def test_labels_alone_read_nothing(tmp_path):
    """They are known from the names, so the files may even be gone."""
    fill(tmp_path, CATS)
    records = headrace.open(tmp_path, fields=("label",))
    for _, path in walked(tmp_path):
        os.unlink(path)

    _, batch = epoch(records)

    assert batch["label"].tolist() == [0, 0, 0, 0]
    assert records.paths == ()
    with pytest.raises(DataError, match="not in the files as they are: got 'label'; headrace."):
        records.spans(np.array([0]), "label")


def test_tensors(tmp_path):
    """Labels are a tensor, files a list."""
    torch = pytest.importorskip("torch")
    fill(tmp_path, CATS)
    with headrace.Loader(headrace.open(tmp_path), 4, tensors=True) as loader:
        batch = next(iter(loader))

    assert batch["label"].dtype == torch.int64
    assert [type(content) for content in batch["file"]] == [bytes] * 4


def test_a_folder_without_folders(tmp_path):
    """Has files and no labels."""
    fill(tmp_path, ["b", "a", "c.jpg", ".d"])

    records = headrace.open(tmp_path)
    indices, batch = epoch(records)

    assert list(records.fields) == ["file"]
    assert [path.name for path in records.paths] == ["a", "b", "c.jpg"]
    for content, index in zip(batch["file"], indices, strict=True):
        assert content == records.paths[index].read_bytes()


def test_a_mapping_names_the_files(tmp_path):
    """Images in a folder, targets in an array; records are in the order of the names."""
    fill(tmp_path / "images", ["3", "1", "2"])
    np.save(tmp_path / "y.npy", np.array([10, 20, 30]))

    records = headrace.open({"image": tmp_path / "images", "y": tmp_path / "y.npy"})
    indices, batch = epoch(records)

    assert batch["y"].tolist() == [10 * (index + 1) for index in indices.tolist()]
    for content, index in zip(batch["image"], indices, strict=True):
        assert content == (tmp_path / "images" / str(index + 1)).read_bytes()


def test_several_folders(tmp_path):
    """One after another if they have the same classes; else their numbers would not go together."""
    fill(tmp_path / "a", ["x/1", "y/2"])
    fill(tmp_path / "b", ["x/3", "y/4", "y/5"], seed=1)
    fill(tmp_path / "c", ["x/1", "z/2"])

    records = headrace.open([tmp_path / "a", tmp_path / "b"])
    indices, batch = epoch(records, batch_size=2)

    assert [path.name for path in records.paths] == list("12345")
    assert batch["label"].tolist() == np.array([0, 1, 0, 1, 1])[indices].tolist()
    for content, index in zip(batch["file"], indices, strict=True):
        assert content == records.paths[index].read_bytes()
    with pytest.raises(DataError, match="files of one data set differ: got .*'z'"):
        headrace.open([tmp_path / "a", tmp_path / "c"])


class Told:
    """Progress that remembers."""

    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)

    def update(self, facts):
        pass


def test_files_beside_the_classes_are_left_out_and_named(tmp_path):
    """As torchvision's ImageFolder does, but not in silence."""
    fill(tmp_path, ["x/1", "README", "labels.csv", ".hidden"])
    told = Told()

    records = headrace.open(tmp_path, progress=told)

    assert len(records) == 1
    assert told.said == [f"2 files in {tmp_path} lie beside its classes and are left out"]


def test_suffixes(tmp_path):
    """Only these, in any case of letters; a class without files keeps its number."""
    fill(tmp_path, ["x/1.JPG", "x/Thumbs.db", "y/notes.txt", "z/2.png"])

    records = headrace.open(tmp_path, suffixes=(".jpg", ".png"))
    indices, batch = epoch(records)

    assert [path.name for path in records.paths] == ["1.JPG", "2.png"]
    assert batch["label"].tolist() == np.array([0, 2])[indices].tolist()
    with pytest.raises(DataError, match="the folder has no files whose names end in .gif; in"):
        headrace.open(tmp_path, suffixes=(".gif",))


def test_links(tmp_path):
    """To files and folders they are followed; nowhere and back are errors, pipes are no files."""
    fill(tmp_path / "store", ["1", "2"])
    (tmp_path / "set" / "x").mkdir(parents=True)
    (tmp_path / "set" / "y").symlink_to(tmp_path / "store")
    (tmp_path / "set" / "x" / "a").symlink_to(tmp_path / "store" / "2")
    os.mkfifo(tmp_path / "set" / "x" / "pipe")

    indices, batch = epoch(headrace.open(tmp_path / "set"))

    truth = [(0, "2"), (1, "1"), (1, "2")]
    for label, content, index in zip(batch["label"], batch["file"], indices, strict=True):
        assert (label, content) == (
            truth[index][0],
            (tmp_path / "store" / truth[index][1]).read_bytes(),
        )
    (tmp_path / "set" / "x" / "b").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match="a link leads nowhere; in .*/set/x/b"):
        headrace.open(tmp_path / "set")
    (tmp_path / "set" / "x" / "b").unlink()
    (tmp_path / "set" / "x" / "b").symlink_to(tmp_path / "set")
    with pytest.raises(DataError, match="a link leads back to a folder that it lies in"):
        headrace.open(tmp_path / "set")


def test_names_of_any_bytes(tmp_path):
    """Blanks, newlines, and bytes that are no UTF-8."""
    names = [b"a b", b"new\nline", b"\xff\xfe", "ü".encode()]
    (tmp_path / "x").mkdir()
    for number, name in enumerate(names):
        with open(os.fsencode(tmp_path / "x") + b"/" + name, "wb") as file:
            file.write(bytes([number]))

    records = headrace.open(tmp_path)
    _, batch = epoch(records)

    assert len(records.fingerprint) == 32
    assert sorted(batch["file"]) == [b"\0", b"\1", b"\2", b"\3"]


@pytest.mark.parametrize("engine", ENGINES)
def test_empty_files_are_records(tmp_path, engine):
    """Of no bytes."""
    fill(tmp_path, ["x/1", "x/3"])
    (tmp_path / "x" / "2").touch()

    indices, batch = epoch(headrace.open(tmp_path), engine)

    assert [content == b"" for content in batch["file"]] == [index == 1 for index in indices]


def test_a_file_that_is_gone_or_shorter(tmp_path):
    """Is named with what it had; labels do not move."""
    fill(tmp_path, ["x/1", "x/2"])
    records = headrace.open(tmp_path)
    size = records.paths[1].stat().st_size
    records.paths[1].write_bytes(bytes(size - 1))
    with pytest.raises(ReadError, match=rf"record 1 could not.*expected {size} bytes.*/x/2"):
        epoch(records)
    records.paths[1].unlink()
    with pytest.raises((DataError, ReadError), match=r"x/2"):
        epoch(records)


def test_fingerprint(tmp_path):
    """Changes with names, sizes, times and classes; not when the folder moves."""
    fill(tmp_path / "here", CATS + ["dog/1"])
    first = headrace.open(tmp_path / "here").fingerprint
    assert headrace.open(tmp_path / "here").fingerprint == first
    (tmp_path / "here").rename(tmp_path / "there")
    there = tmp_path / "there"
    assert headrace.open(there).fingerprint == first
    seen = {first, headrace.open(there, suffixes=("",)).fingerprint}
    status = (there / "dog/1").stat()
    os.utime(there / "dog/1", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    seen.add(headrace.open(there).fingerprint)
    (there / "dog/1").write_bytes(bytes(9500))
    seen.add(headrace.open(there).fingerprint)
    (there / "dog/1").rename(there / "dog/2")
    seen.add(headrace.open(there).fingerprint)
    (there / "dog").rename(there / "dogs")
    seen.add(headrace.open(there).fingerprint)
    (there / "empty").mkdir()
    seen.add(headrace.open(there).fingerprint)

    assert len(seen) == 7


def test_images_decoded(tmp_path):
    """PNG, JPEG and grey images are what Pillow makes of them; damaged ones are named."""
    image_of = pytest.importorskip("PIL.Image")
    generator = np.random.default_rng(0)
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    pixels = generator.integers(0, 256, (5, 7, 3), np.uint8)
    image_of.fromarray(pixels).save(tmp_path / "x" / "1.png")
    image_of.fromarray(pixels[:3]).save(tmp_path / "x" / "2.jpg")
    image_of.fromarray(pixels[:, :, 0]).save(tmp_path / "y" / "3.png")
    jpeg = np.asarray(image_of.open(io.BytesIO((tmp_path / "x" / "2.jpg").read_bytes())))
    truth = [pixels, jpeg, np.repeat(pixels[:, :, :1], 3, 2)]

    indices, batch = epoch(headrace.open(tmp_path, format="folder", decoded=True))

    for image, index in zip(batch["file"], indices, strict=True):
        assert image.dtype == np.uint8
        assert np.array_equal(image, truth[index])
    (tmp_path / "y" / "3.png").write_bytes(b"no image")
    with pytest.raises(ReadError, match=r"a record is damaged: got no image: .*y/3.png, record 2"):
        epoch(headrace.open(tmp_path, format="folder", decoded=True))


MANY = """
import resource, sys
import numpy as np
import headrace
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
records = headrace.open(sys.argv[1])
seen, wrong = [], 0
with headrace.Loader(records, 512, engine=sys.argv[2]) as loader:
    for batch in loader:
        numbers = [int(content) for content in batch["file"]]
        seen += numbers
        wrong += (np.array(numbers) % 10 != batch["label"]).sum()
assert sorted(seen) == list(range(10_000)) and wrong == 0
assert seen != sorted(seen)
print("fine")
"""


def test_ten_thousand_files_with_few_descriptors(tmp_path):
    """As under ulimit -n 256, with either engine."""
    for label in range(10):
        (tmp_path / str(label)).mkdir()
    for number in range(10_000):
        (tmp_path / str(number % 10) / f"{number}.txt").write_bytes(b"%d" % number)
    for engine in ENGINES:
        done = subprocess.run(
            [sys.executable, "-c", MANY, tmp_path, engine], capture_output=True, text=True
        )
        assert done.stdout == "fine\n", done.stderr


def test_opening_looks_at_each_file_once(tmp_path):
    """A hundred thousand files open in seconds: one stat each, and none is opened."""
    fill(tmp_path, [f"x/{number}" for number in range(50)])
    text = (
        "import os, sys, headrace, headrace.data.opening, headrace.data.formats.folder\n"
        "counts = {'open': 0}\n"
        "def note(event, arguments):\n"
        "    counts['open'] += event == 'open' and str(arguments[0]).startswith(sys.argv[1])\n"
        "sys.addaudithook(note)\n"
        "print(len(headrace.open(sys.argv[1])), counts['open'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, tmp_path], capture_output=True, text=True, check=True
    )

    assert done.stdout == "50 0\n"


def test_no_folder(tmp_path):
    """A file is not a folder of files."""
    fill(tmp_path, ["a"])

    with pytest.raises(DataError, match="not a folder: got .*/a; give the folder, not its files"):
        headrace.open(tmp_path / "a", format="folder")
