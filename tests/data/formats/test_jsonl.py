"""JSON lines against the json module reading the same files line by line."""

import json

import numpy as np
import pytest

import headrace
from headrace.data.formats import detect
from headrace.data.formats.jsonl import JSONLines
from headrace.errors import ReadError
from headrace.progress import Silent
from tests.data.formats.epochs import ENGINES, epoch

VALUES = [{"a": 1, "b": ['é\n\r\\"', None]}, [], {}, "", "text", 0, -1.5e-3, 2**70, True, None]


def decode(content):
    return JSONLines().decode("json", np.frombuffer(content, np.uint8), {})


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b"\n \t\r\n", b"\r\n\r\n\n"])
@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf", b"\n\n", b" \n"])
@pytest.mark.parametrize("tail", [b"", b"\n", b"  ", b"\n \t", b"\r"])
def test_every_border(tmp_path, end, head, tail):
    """Blank lines anywhere, in pieces of every size."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(value, ensure_ascii=False).encode() for value in VALUES]
    lines[2] = b" \t{ } "
    path.write_bytes(head + end.join(lines) + tail)
    content = path.read_bytes()
    for piece_bytes in (*range(1, 20), 64, 1000):
        table = JSONLines().scan(path, Silent(), piece_bytes)["json"]
        places = zip(table.offsets.tolist(), table.lengths.tolist(), strict=True)
        found = [decode(content[start : start + length]) for start, length in places]
        assert found == VALUES, piece_bytes


def test_only_blank_lines(tmp_path):
    """No records, as in an empty file."""
    for number, content in enumerate((b"", b"\n", b"\r\n \t\n", b" ", b"\xef\xbb\xbf\n")):
        (tmp_path / f"{number}.ndjson").write_bytes(content)

    assert detect(tmp_path / "0.ndjson") == "jsonl"
    assert len(headrace.open(str(tmp_path / "*.ndjson"))) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_epoch(tmp_path, engine):
    """Every record of several files once, in the order of the epoch."""
    truth = [{"id": i, "text": "x" * (i * 37 % 101)} for i in range(60)]
    for name, some in (("a", truth[:13]), ("b", []), ("c", truth[13:])):
        text = "\r\n".join(json.dumps(value) for value in some)
        (tmp_path / f"{name}.jsonl").write_text(text)

    indices, found = epoch(headrace.open(str(tmp_path / "*.jsonl")), engine)

    assert found["json"] == [truth[i] for i in indices]


@pytest.mark.parametrize(
    "content, message",
    [
        (b'{"a": }', r"no JSON: Expecting value at character 6"),
        (b'{"a": 1} {}', r"no JSON: Extra data at character 9"),
        (b'{"a": 1', r"no JSON: Expecting ',' delimiter at character 7"),
        ("é x".encode(), r"no JSON: Expecting value at character 0"),
        (b'"\xff"', r"can't decode byte 0xff in position 1"),
        (b"[" * 200_000, r"no JSON that can be read: it is nested too deeply"),
    ],
)
def test_damaged_line(tmp_path, content, message):
    """What is wrong, where in the line, and which record."""
    with pytest.raises(ValueError, match=message):
        decode(content)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n\n" + content + b"\n2\n")
    records = headrace.open(path)
    assert len(records) == 3
    loader = headrace.Loader(records, 3, order=headrace.SequentialOrder())
    with pytest.raises(ReadError, match=rf"{message}.*a\.jsonl, record 1, offset 3"):
        next(iter(loader))
