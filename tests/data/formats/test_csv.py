"""CSV and TSV against Python's csv module reading the same files."""

import csv
import random

import numpy as np
import pytest

import headrace
from headrace.data.formats import detect
from headrace.data.formats.csv import CSV, cells_of
from headrace.errors import DataError, ReadError
from headrace.progress import Silent
from tests.data.formats.epochs import ENGINES, epoch


def oracle(path, delimiter=",", quote='"'):
    """Rows that have cells, by the csv module."""
    quoting = csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file, delimiter=delimiter, quotechar=quote or None, quoting=quoting)
        return [row for row in rows if row]


def rows_in(path, format, piece_bytes=1 << 20):
    """Rows by our scan and decode."""
    table = format.scan(path, Silent(), piece_bytes)["row"]
    content = path.read_bytes()
    return [
        format.decode("row", np.frombuffer(content[start : start + length], np.uint8), table.about)
        for start, length in zip(table.offsets.tolist(), table.lengths.tolist(), strict=True)
    ]


def test_a_quoted_line_end_slides_over_every_border(tmp_path):
    """CRLF, LF, quotes and delimiters in a quoted cell, at every place of a piece."""
    path = tmp_path / "a.csv"
    for shift in range(70):
        path.write_bytes(b"x" * shift + b',"1\r\n""2"",\n3""",4\r\n"""","\r\n",\n')
        truth = [["x" * shift, '1\r\n"2",\n3"', "4"], ['"', "\r\n", ""]]
        assert oracle(path) == truth
        for piece_bytes in (1, 2, 3, 7, 64, 65):
            assert rows_in(path, CSV(header=False), piece_bytes) == truth, (shift, piece_bytes)


@pytest.mark.parametrize("seed", range(40))
def test_any_text_of_quotes_and_ends(tmp_path, seed):
    """Whatever the characters, rows are those of the csv module, where it reads them at all."""
    draw = random.Random(seed)
    path = tmp_path / "a.csv"
    delimiter, quote = draw.choice([(",", '"'), (";", "'"), ("\t", '"'), ("|", "")])
    letters = ["a", "é", delimiter, delimiter, "\n", "\r\n", " ", quote or '"', quote or "'"]
    num_compared = 0
    while num_compared < 25:
        text = "".join(draw.choices(letters, k=draw.randint(1, 40)))
        path.write_bytes(text.encode())
        format = CSV(delimiter, quote, header=False)
        truth = oracle(path, delimiter, quote)
        try:
            table = format.scan(path, Silent(), draw.randint(1, 9))["row"]
        except DataError as error:
            assert "quotes are never closed" in str(error)
            continue
        content = path.read_bytes()
        found = [
            cells_of(content[start : start + length].decode(), delimiter, quote)
            for start, length in zip(table.offsets.tolist(), table.lengths.tolist(), strict=True)
        ]
        assert found == truth, text
        num_compared += 1


@pytest.mark.parametrize("dialect", ["excel", "unix", "excel-tab"])
def test_what_the_csv_module_writes(tmp_path, dialect):
    """In its own dialects, with a header; one is for files named .tsv."""
    path = tmp_path / ("a.tsv" if dialect == "excel-tab" else "a.csv")
    rows = [{"x": "1", "the, text": 'a "b"\r\nc,\td'}, {"x": "", "the, text": "é"}]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], dialect=dialect)
        writer.writeheader()
        writer.writerows(rows)

    assert detect(path) == "csv"
    assert rows_in(path, CSV()) == rows


@pytest.mark.parametrize(
    "content, rows",
    [
        (b"", []),
        (b"a,b", []),
        (b"a,b\n", []),
        (b"\r\n\na,b\r\n\r\n\r\n1,2\r\n\n", [{"a": "1", "b": "2"}]),
        (b"\xef\xbb\xbfa,b\n1,2", [{"a": "1", "b": "2"}]),
        (b'\xef\xbb\xbf"a",b\n1,2\r', [{"a": "1", "b": "2"}]),
        (b"a\n \n\n", [{"a": " "}]),
        (b'a\n""\n', [{"a": ""}]),
        (b'a,b\n5" x,6"\n', [{"a": '5" x', "b": '6"'}]),
        (b'a,b\n"5"x,"6"y"z"\n', [{"a": "5x", "b": '6y"z"'}]),
    ],
)
def test_small_files(tmp_path, content, rows):
    """Blank rows, byte order marks, no final line feed, stray quotes."""
    path = tmp_path / "a.csv"
    path.write_bytes(content)

    assert rows_in(path, CSV()) == rows
    truth = oracle(path)
    assert [list(row.values()) for row in rows] == truth[1:]
    assert len(headrace.open(path)) == len(rows)


def test_long_cells(tmp_path):
    """Longer than the csv module takes without being told."""
    path = tmp_path / "a.csv"
    path.write_text(f'a,b\n{"x" * 300_000},"{"y" * 300_000}"\n')

    assert rows_in(path, CSV()) == [{"a": "x" * 300_000, "b": "y" * 300_000}]


@pytest.mark.parametrize("engine", ENGINES)
def test_epoch(tmp_path, engine):
    """Every row of several files once, in the order of the epoch; empty files say nothing."""
    truth = [{"id": str(i), "text": 'line\r\n"' * (i % 5)} for i in range(60)]
    for name, some in (("a", truth[:20]), ("c", []), ("d", truth[20:])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "text"])
            writer.writeheader()
            writer.writerows(some)
    (tmp_path / "b.csv").touch()
    records = headrace.open(str(tmp_path / "*.csv"))

    indices, found = epoch(records, engine)

    assert records.fields["row"].about["names"] == ["id", "text"]
    assert found["row"] == [truth[i] for i in indices]


@pytest.mark.parametrize(
    "other, message",
    [
        (("b.csv", b"x,z\n1,2\n"), r"\['x', 'z'\] with .* and \['x', 'y'\] with the delimiter ','"),
        (("b.csv", b"y,x\n1,2\n"), r"got \['y', 'x'\] .* and \['x', 'y'\]"),
        (("b.tsv", b"x\ty\n1\t2\n"), r"with the delimiter '\\t' and .* with the delimiter ','"),
    ],
)
def test_files_that_differ(tmp_path, other, message):
    """One data set has one header."""
    (tmp_path / "a.csv").write_bytes(b"x,y\n1,2\n")
    (tmp_path / other[0]).write_bytes(other[1])

    with pytest.raises(DataError, match=f"files of one data set differ: .*{message}"):
        headrace.open(str(tmp_path / "*.?sv"))
    (tmp_path / other[0]).write_bytes(b"1,2,3\n")
    with pytest.raises(DataError, match="3 cells with .* and 2 cells with"):
        headrace.open(str(tmp_path / "*.?sv"), header=False, delimiter=",")


@pytest.mark.parametrize(
    "content, message",
    [
        (
            b'a,b\n1,"2\n3\n',
            r"quotes are never closed: got the end .* byte 11, .* of byte 6, in .* 4",
        ),
        (b"a,b,a\n1,2,3\n", r"columns have the same name: got 'a'; .* header=False"),
        (b"\xffa,b\n1,2\n", r"the first row is damaged: got .* byte 0xff in position 0.*iconv"),
        (
            b"a,b\r1,2\r3,4",
            r"first row is damaged: got a line ends at character 3, by '\\r' without",
        ),
    ],
)
def test_files_that_are_damaged(tmp_path, content, message):
    """What the scan refuses, with where and what to do."""
    (tmp_path / "a.csv").write_bytes(content)

    with pytest.raises(DataError, match=message):
        headrace.open(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "row, header, message",
    [
        (b"1", True, "1 cells, and the header has 2"),
        (b"1,2,3", True, "3 cells, and the header has 2"),
        (b"1,2,3", False, "3 cells, and the first row has 2"),
        (b"1,\xff", True, "can't decode byte 0xff in position 2"),
        (b"1,\r2", True, r"a line ends at character 2, by '\\r' without quotes"),
        (b'"1",2\r3', True, r"a line ends at character 5, by '\\r' without quotes"),
    ],
)
def test_rows_that_are_damaged(tmp_path, row, header, message):
    """What decoding refuses, with the record and file."""
    (tmp_path / "a.csv").write_bytes(b"a,b\n1,2\n" + row + b"\n")
    records = headrace.open(tmp_path / "a.csv", header=header)
    with pytest.raises(ReadError, match=rf"{message}.*a\.csv, record {len(records) - 1}, offset 8"):
        list(headrace.Loader(records, 9, order=headrace.SequentialOrder()))


def test_cells_of_a_part_of_a_row():
    """Which no scan hands over."""
    with pytest.raises(ValueError, match="the quotes of character 2 are not closed"):
        cells_of('1,"2""', ",", '"')


@pytest.mark.parametrize(
    "options, message",
    [
        ({"delimiter": ""}, "the delimiter is wrong: got '', expected one ASCII character"),
        ({"delimiter": ", "}, "the delimiter is wrong: got ', '"),
        ({"delimiter": "§"}, "the delimiter is wrong: got '§'"),
        ({"delimiter": "\n"}, r"the delimiter is wrong: got '\\n'"),
        ({"delimiter": 1}, "the delimiter is wrong: got 1"),
        ({"quote": "''"}, "the quote is wrong: got \"''\""),
        ({"quote": None}, "the quote is wrong: got None"),
        ({"delimiter": "'", "quote": "'"}, 'delimiter and quote are the same: got "\'"'),
    ],
)
def test_wrong_options(options, message):
    """Before any file is looked at."""
    with pytest.raises(DataError, match=message):
        CSV(**options)
