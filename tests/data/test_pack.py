"""What pack writes, its formats' own readers read."""

import io
import json
import tarfile

import numpy as np
import pytest
from crc32c import crc32c

import headrace
from headrace.data.pack import pack
from headrace.errors import DataError, ReadError
from headrace.progress import Silent


@pytest.fixture
def folder(tmp_path):
    """Arrays in big-endian order, and lines of several lengths."""
    np.save(tmp_path / "x.npy", np.arange(1200, dtype=">i4").reshape(400, 3))
    np.save(tmp_path / "y.npy", np.arange(400, dtype=np.float32) / 2)
    (tmp_path / "t.txt").write_text("".join(f"{'é' * (i % 5)}{i}\n" for i in range(400)))
    return tmp_path


def lines(folder):
    return (folder / "t.txt").read_text().splitlines()


def frames_in(content):
    """The records of a TFRecord file."""
    found = []
    while content:
        length = int.from_bytes(content[:8], "little")
        record, rest = content[12 : 12 + length], content[12 + length :]
        for part, check in ((content[:8], content[8:12]), (record, rest[:4])):
            crc = crc32c(part)
            masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
            assert int.from_bytes(check, "little") == masked
        found.append(record)
        content = rest[4:]
    return found


ORDERS = [headrace.SequentialOrder(), headrace.RandomOrder(3)]


@pytest.mark.parametrize("order", ORDERS, ids=["in order", "shuffled"])
def test_arrays(folder, order):
    """As numpy.load has them; several fields keep their rows together."""
    records = headrace.open({"x": folder / "x.npy", "y": folder / "y.npy"})

    pack(records, folder / "out", "npy", order, Silent())

    rows = order.indices(np.arange(400), 400, 0)
    assert np.array_equal(np.load(folder / "out/x.npy"), np.load(folder / "x.npy")[rows])
    assert np.array_equal(np.load(folder / "out/y.npy"), np.load(folder / "y.npy")[rows])
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["x.npy", "y.npy"]


@pytest.mark.parametrize("order", ORDERS, ids=["in order", "shuffled"])
def test_tfrecord(folder, order):
    """As the format is written down, checksums by another library; and as headrace reads it."""
    records = headrace.open(folder / "t.txt")

    pack(records, folder / "out.tfrecord", "tfrecord", order, Silent())

    expected = [lines(folder)[row] for row in order.indices(np.arange(400), 400, 0)]
    assert frames_in((folder / "out.tfrecord").read_bytes()) == [one.encode() for one in expected]
    again = headrace.Loader(
        headrace.open(folder / "out.tfrecord"), batch_size=400, order=headrace.SequentialOrder()
    )
    assert [one.decode() for one in next(iter(again))["record"]] == expected


def test_tar(folder):
    """As tarfile reads it: text, and arrays as .npy; back through headrace, too."""
    records = headrace.open({"x": folder / "x.npy", "t": folder / "t.txt"})

    pack(records, folder / "out.tar", "tar", headrace.SequentialOrder(), Silent())

    with tarfile.open(folder / "out.tar") as tar:
        names = tar.getnames()
        member = tar.extractfile("000000007.t.txt")
        assert member is not None
        assert member.read().decode() == lines(folder)[7]
        member = tar.extractfile("000000007.x.npy")
        assert member is not None
        assert np.load(io.BytesIO(member.read())).tolist() == [21, 22, 23]
    assert names[:3] == ["000000000.x.npy", "000000000.t.txt", "000000001.x.npy"]
    assert len(names) == 800
    assert len(headrace.open(folder / "out.tar")) == 400


def test_what_does_not_go(folder):
    """Each says why, and leaves nothing behind."""
    arrays = headrace.open({"x": folder / "x.npy", "y": folder / "y.npy"})
    text = headrace.open(folder / "t.txt")
    before = sorted(folder.iterdir())
    for records, format, message in (
        (arrays, "tfrecord", "the fields do not go into TFRecord: got x: .*, expected one field"),
        (text, "npy", "records of field 'line' have no common shape"),
        (text, "zip", "unknown format to write: got zip, expected npy, tar, tfrecord, csr"),
    ):
        with pytest.raises(DataError, match=message):
            pack(records, folder / "out", format, headrace.SequentialOrder(), Silent())
    with pytest.raises(DataError, match="the target exists"):
        pack(text, folder / "t.txt", "tar", headrace.SequentialOrder(), Silent())
    (folder / "t.txt").write_bytes(b"\xff\n" * 5)
    with pytest.raises(ReadError, match="a record is damaged"):
        pack(headrace.open(folder / "t.txt"), folder / "o", "tar", ORDERS[0], Silent())
    with (folder / "x.npy").open("r+b") as file:
        file.truncate(2000)
    with pytest.raises(ReadError, match="x.npy"):
        pack(arrays, folder / "o", "npy", ORDERS[0], Silent())
    assert sorted(folder.iterdir()) == before


def test_objects_become_json(tmp_path):
    """Rows of a CSV file and JSON lines, in either format that takes them."""
    rows = [{"a": "1", "b": "é"}, {"a": "2", "b": 'x,"y"'}]
    (tmp_path / "t.csv").write_text('a,b\n1,é\n2,"x,""y"""\n')
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("t.csv", "t.jsonl"):
        records = headrace.open(tmp_path / name)
        (field,) = records.fields
        for format in ("tfrecord", "tar"):
            pack(records, tmp_path / f"{name}.{format}", format, ORDERS[0], Silent())

        frames = frames_in((tmp_path / f"{name}.tfrecord").read_bytes())
        assert [json.loads(frame) for frame in frames] == rows
        again = headrace.open(tmp_path / f"{name}.tar", decoded=True)
        batch = next(iter(headrace.Loader(again, batch_size=2, order=ORDERS[0])))
        (values,) = (batch[one] for one in again.fields)
        assert values == rows, field
