"""Lines against Python's own reading of the same files; UTF-8, byte order marks, large offsets."""

import random

import numpy as np
import pytest

import headrace
from headrace.data.formats import detect, make
from headrace.data.formats.finding import ROOM_BYTES, find
from headrace.data.formats.lines import Lines, lines_in
from headrace.data.formats.rows import Rules, Under, find_rows
from headrace.data.formats.text import text_begin
from headrace.errors import DataError, ReadError
from headrace.progress import Silent
from tests.data.formats.epochs import ENGINES, epoch

CONTENTS = [
    b"",
    b"\n",
    b"\n\n",
    b"a",
    b"a\n",
    b"a\nb",
    b"a\n\nb\n",
    b"\na",
    b"a\r\nb\r\n",
    b"a\r\nb\r",
    b"\r\n\r\n",
    b"a\rb\n",
    b"\xef\xbb\xbf",
    b"\xef\xbb\xbf\n",
    b"\xef\xbb\xbfa\nb",
    b"\xef\xbb",
    "é\n😀\u2028ü\x0b\x0c\x1c\x85\n".encode(),
]


def expected(content):
    """The lines by bytes.split."""
    rows = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return rows if rows[-1] else rows[:-1]


def rows_in(path, table):
    content = path.read_bytes()
    places = zip(table.offsets.tolist(), table.lengths.tolist(), strict=True)
    return [content[start : start + length] for start, length in places]


@pytest.mark.parametrize("content", CONTENTS)
def test_every_border(tmp_path, content):
    """In pieces of 1 byte, 2 bytes and so on, each line is what bytes.split finds."""
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    for piece_bytes in range(1, len(content) + 2):
        table = lines_in(path, Silent(), piece_bytes)
        assert rows_in(path, table) == expected(content), piece_bytes


@pytest.mark.parametrize("piece_bytes", [1, 63, 64, 65, 1000])
def test_random_text(tmp_path, piece_bytes):
    """Lines of 0 to 300 bytes, so that the search crosses blocks of 64."""
    draw = random.Random(piece_bytes)
    content = b"\n".join(b"x" * draw.choice([0, 1, 2, 63, 64, 65, 127, 300]) for _ in range(200))
    (tmp_path / "a.txt").write_bytes(content)

    assert rows_in(tmp_path / "a.txt", lines_in(tmp_path / "a.txt", Silent(), piece_bytes)) == (
        expected(content)
    )


def test_find():
    """Each place in a block and the next, each of the three bytes, none, and one after the end."""
    for place in range(3, 140):
        for byte in b"abc":
            text = np.full(140 + ROOM_BYTES, ord("x"), np.uint8)
            text[[0, 2, place]] = byte
            assert find(text, 3, 140, *b"abc") == place
            assert find(text, 3, place, *b"abc") == place
            assert find(text, 3, place, *b"xyz") == (3 if place > 3 else place)
    assert find(np.zeros(140 + ROOM_BYTES, np.uint8), 5, 140, *b"abc") == 140
    assert find(np.zeros(ROOM_BYTES, np.uint8), 0, 0, 0, 0, 0) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_epoch(tmp_path, engine):
    """Every line of several files once, in the order of the epoch; one file has none."""
    texts = {"a": "é\r\n\r\nlast", "b": "", "c": "".join(f"line {i}\n" for i in range(50))}
    for name, text in texts.items():
        (tmp_path / f"{name}.txt").write_bytes(text.encode())
    truth = ["é", "", "last", *(f"line {i}" for i in range(50))]

    indices, found = epoch(headrace.open(str(tmp_path / "*.txt")), engine)

    assert found["line"] == [truth[i] for i in indices]


def test_empty_file(tmp_path):
    """By its name it is a file of lines, and has none."""
    (tmp_path / "a.TXT").touch()

    assert detect(tmp_path / "a.TXT") == "lines"
    assert len(headrace.open(tmp_path / "a.TXT")) == 0


def test_offsets_beyond_32_bits():
    """A piece of a long file, which begins right before 2^32."""
    text = np.zeros(20 + ROOM_BYTES, np.uint8)
    text[[3, 8, 12]] = ord("\n")
    rows = np.empty((2, 20), np.int64)
    rules = Rules(10, 10, np.zeros(256, bool), True)
    begin = 2**31 - 7

    num, under = find_rows(text, 0, 20, 2**32 - 6, rules, Under(begin), rows)

    assert rows[:, :num].T.tolist() == [[begin, 2**31 + 4], [2**32 - 2, 4], [2**32 + 3, 3]]
    assert under.begin == 2**32 + 7


@pytest.mark.slow
def test_sparse_file(tmp_path):
    """A sparse file: zeros are characters like others, so its lines are of gigabytes."""
    path = tmp_path / "a.txt"
    ends = [2**31 - 1, 2**31 + 5, 2**32, 2**32 + 3]
    with path.open("wb") as file:
        file.truncate(2**32 + 10)
        for end in ends:
            file.seek(end)
            file.write(b"\n")
    table = make("lines", {}).scan(path, Silent())["line"]

    assert table.offsets.tolist() == [0, *(end + 1 for end in ends)]
    assert table.lengths.tolist() == [2**31 - 1, 5, 2**32 - 2**31 - 6, 2, 6]
    records = headrace.open(path)
    batch = next(iter(headrace.Loader(records[[1, 3, 4]], 3, order=headrace.SequentialOrder())))
    assert batch["line"] == ["\0" * 5, "\0" * 2, "\0" * 6]


def test_text_in_utf_16(tmp_path):
    """As some editors write it."""
    for order, mark in (("le", "ff fe"), ("be", "fe ff")):
        path = tmp_path / f"{order}.txt"
        path.write_bytes(bytes.fromhex(mark) + "a\nb".encode(f"utf-16-{order}"))
        with pytest.raises(DataError, match=f"not in UTF-8: got the .* {mark} of UTF-16.*iconv"):
            headrace.open(path)
    (tmp_path / "a").write_bytes(b"\xff")
    assert text_begin(tmp_path / "a") == 0


def test_damaged_line(tmp_path):
    """The message names the byte in the line, the record and the file."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\nnot\xff so\n")
    loader = headrace.Loader(headrace.open(path), 1, order=headrace.SequentialOrder())
    batches = iter(loader)

    assert next(batches)["line"] == ["fine"]
    with pytest.raises(
        ReadError, match=r"can't decode byte 0xff in position 3.*a\.txt, record 1, offset 5"
    ):
        next(batches)


def test_what_is_appended_meanwhile_is_left_alone(tmp_path):
    """The scan ends where the file ended when it began."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n")

    class Appending(Silent):
        def update(self, facts):
            with path.open("ab") as file:
                file.write(b"more\n")

    assert lines_in(path, Appending(), 1).lengths.tolist() == [1, 1]
    assert Lines().scan(path, Silent())["line"].num_records == 6
