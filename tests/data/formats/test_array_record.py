"""ArrayRecord files, which are refused."""

import pytest

import headrace
from headrace.errors import DataError

HEAD = "83 af 70 d1 0d 88 4a 3f 00 00 00 00 00 00 00 00"
"""How array_record 0.8's ArrayRecordWriter begins a file, whatever its options."""


def test_array_record_is_named(tmp_path):
    """Rather than unknown, with what to do."""
    (tmp_path / "a.array_record").write_bytes(bytes.fromhex(HEAD) + bytes(65536))

    with pytest.raises(
        DataError, match="ArrayRecord files cannot be read in place: got Riegeli.*TFR"
    ):
        headrace.open(tmp_path / "a.array_record")


def test_a_file_that_its_own_writer_made(tmp_path):
    """Where array_record is installed."""
    module = pytest.importorskip("array_record.python.array_record_module")
    for options in ("group_size:1", "group_size:1,uncompressed"):
        writer = module.ArrayRecordWriter(str(tmp_path / "a.array_record"), options)
        writer.write(b"record")
        writer.close()
        with pytest.raises(DataError, match="ArrayRecord files cannot be read in place"):
            headrace.open(tmp_path / "a.array_record")
