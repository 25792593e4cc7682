"""Files that change in mid-epoch: what is delivered is right, or an error names the file."""

import os
import pickle
import tarfile
from io import BytesIO

import numpy as np
import pytest

import headrace
from headrace.errors import HeadraceError
from tests.data.formats import test_mds, test_tfrecord

NUM_FILES, PER_FILE = 3, 40


def contents(seed, num=PER_FILE):
    """Records of some thousand bytes each, so that a file is not read as a whole at once."""
    generator = np.random.default_rng(seed)
    return [generator.bytes(int(size)) for size in generator.integers(2000, 9000, num)]


def numbers(seed, num=PER_FILE):
    return np.random.default_rng(seed).random((num, 700))


def npy(path, seed, num):
    with path.open("wb") as file:
        np.save(file, numbers(seed, num))


def tfrecord(path, seed, num):
    test_tfrecord.write(path, contents(seed, num))


def tar(path, seed, num):
    with tarfile.open(path, "w") as archive:
        for number, content in enumerate(contents(seed, num)):
            member = tarfile.TarInfo(f"{number:04}.bin")
            member.size = len(content)
            archive.addfile(member, BytesIO(content))


def lines(path, seed, num):
    path.write_text("".join(f"{content.hex()}\n" for content in contents(seed, num)))


def libsvm(path, seed, num):
    rows = (" ".join(f"{i}:{x:.9f}" for i, x in enumerate(row, 1)) for row in numbers(seed, num))
    path.write_text("".join(f"{number % 2} {row}\n" for number, row in enumerate(rows)))


def table(seed, num):
    pa = pytest.importorskip("pyarrow")
    return pa.table({"x": contents(seed, num)})


def arrow(path, seed, num):
    rows = table(seed, num)
    pa = pytest.importorskip("pyarrow")
    with pa.ipc.new_file(str(path), rows.schema) as writer:
        writer.write_table(rows)


def parquet(path, seed, num):
    rows = table(seed, num)
    pytest.importorskip("pyarrow.parquet").write_table(rows, path, row_group_size=10)


def mds(path, seed, num):
    samples = [{"x": content} for content in contents(seed, num)]
    path.write_bytes(test_mds.shard({"x": "bytes"}, samples))


def one_file(path, seed, num):
    path.write_bytes(b"".join(contents(seed, num)[:2]))


WRITERS = {
    "npy": npy,
    "tfrecord": tfrecord,
    "tar": tar,
    "txt": lines,
    "libsvm": libsvm,
    "arrow": arrow,
    "parquet": parquet,
    "mds": mds,
    "bin": one_file,
}


def fill(folder, kind):
    """Some files of a kind; a folder has more of them, a record each."""
    folder.mkdir()
    num_files = 20 if kind == "bin" else NUM_FILES
    paths = [folder / f"{number:02}.{kind}" for number in range(num_files)]
    for number, path in enumerate(paths):
        WRITERS[kind](path, number, PER_FILE)
    return paths


def opened(folder, kind):
    format = {"txt": "lines", "bin": "folder"}.get(kind)
    return headrace.open(folder if kind == "bin" else str(folder / f"*.{kind}"), format)


def replaced(path, kind, num):
    """A new file takes the name, as careful programs write."""
    new = path.with_name("new")
    WRITERS[kind](new, 99, num)
    os.replace(new, path)


CHANGES = {
    "deleted": lambda path, kind: path.unlink(),
    "cut short": lambda path, kind: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path, kind: os.truncate(path, 0),
    "replaced by a shorter one": lambda path, kind: replaced(path, kind, PER_FILE // 2),
    "replaced by a longer one": lambda path, kind: replaced(path, kind, PER_FILE * 2),
    "replaced by one like it": lambda path, kind: replaced(path, kind, PER_FILE),
}


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_file_that_changes_in_mid_epoch(tmp_path, kind, change, direct):
    """Batch for batch the bytes that an untouched copy has, until an error that names the file."""
    paths = fill(tmp_path / "changing", kind)
    fill(tmp_path / "whole", kind)
    order = headrace.RandomOrder(0)
    records = opened(tmp_path / "changing", kind)
    changing = headrace.Loader(records, 4, order=order, batches_ahead=1, direct=direct)
    whole = headrace.Loader(opened(tmp_path / "whole", kind), 4, order=order)
    found = iter(changing)
    for number, truth in enumerate(whole):
        if number == 2:
            CHANGES[change](paths[1], kind)
        try:
            batch = next(found)
        except HeadraceError as error:
            assert str(paths[1]) in str(error)
            break
        assert pickle.dumps(batch) == pickle.dumps(truth), f"batch {number}"
    changing.close()
    whole.close()
