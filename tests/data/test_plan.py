"""Plans hold every piece, read nothing twice, and take as few reads as can be."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.data.plan import MAX_READ_BYTES, ReadPlan, Spans, plan_in_order, plan_reads
from headrace.errors import DataError

FILE_BYTES = (300, 0, 5000)


def spans_of(records: list[list[tuple[int, int, int]]]) -> Spans:
    """Records of pieces (file, offset, length) as arrays."""
    pieces = [piece for record in records for piece in record]
    files, offsets, lengths = zip(*pieces, strict=True) if pieces else ((), (), ())
    starts = np.cumsum([0] + [len(record) for record in records])
    return Spans(
        np.array(files, np.int32),
        np.array(offsets, np.int64),
        np.array(lengths, np.int64),
        starts.astype(np.int64),
    )


def contents() -> list[bytes]:
    random = np.random.default_rng(3)
    return [random.bytes(size) for size in FILE_BYTES]


def execute(plan: ReadPlan, files: list[bytes]) -> bytes:
    """The buffer after one plain slice of the files for each read."""
    buffer = bytearray(b"\xee" * plan.buffer_bytes)
    for file, offset, length, needed, destination in zip(
        plan.files, plan.offsets, plan.lengths, plan.needed, plan.destinations, strict=True
    ):
        came = files[file][offset : offset + length]
        assert len(came) >= needed
        buffer[destination : destination + len(came)] = came
    return bytes(buffer)


def blocks_of(spans: Spans, alignment: int) -> set[tuple[int, int]]:
    """The aligned blocks (file, number) that the pieces touch, byte by byte."""
    return {
        (int(file), byte // alignment)
        for file, offset, length in zip(spans.files, spans.offsets, spans.lengths, strict=True)
        for byte in range(offset, offset + length)
    }


def num_runs(blocks: set[tuple[int, int]]) -> int:
    """Runs of neighbouring blocks: no plan that reads only these can do with fewer reads."""
    return sum((file, number - 1) not in blocks for file, number in blocks)


@st.composite
def a_piece(draw: st.DrawFn) -> tuple[int, int, int]:
    file = draw(st.integers(0, len(FILE_BYTES) - 1))
    offset = draw(st.integers(0, FILE_BYTES[file]))
    length = draw(st.integers(0, min(FILE_BYTES[file] - offset, 700)))
    return file, offset, length


some_records = st.lists(st.lists(a_piece(), max_size=3), max_size=20)


@given(some_records, st.sampled_from([1, 2, 512, 4096]))
@example([], 1)
@example([[]], 512)
@example([[(0, 5, 0)], [(1, 0, 0)]], 4096)
@example([[(0, 10, 20)], [(0, 10, 20)], [(0, 15, 3)], [(0, 30, 1)]], 1)
def test_every_piece_is_found_and_reads_are_few(
    records: list[list[tuple[int, int, int]]], alignment: int
) -> None:
    """Bytes at `positions` are the file's; the reads are the runs of the blocks touched."""
    spans, files = spans_of(records), contents()

    plan = plan_reads(spans, alignment=alignment)

    buffer = execute(plan, files)
    for file, offset, length, position in zip(
        spans.files, spans.offsets, spans.lengths, plan.positions, strict=True
    ):
        assert buffer[position : position + length] == files[file][offset : offset + length]
    check_form(plan, alignment, MAX_READ_BYTES)
    blocks = blocks_of(spans, alignment)
    assert len(plan.offsets) == num_runs(blocks)
    assert plan.buffer_bytes == len(blocks) * alignment


@given(some_records, st.integers(1, 900))
@example([], 900)
@example([[(0, 10, 20)], [(0, 30, 5)], [(0, 35, 0)], [(0, 35, 5)], [(2, 40, 5)], [(0, 40, 5)]], 900)
def test_in_order_the_buffer_is_the_records_joined(
    records: list[list[tuple[int, int, int]]], limit: int
) -> None:
    """Reads are sorted by file, as few as the pieces' own order allows, and none too long."""
    spans, files = spans_of(records), contents()

    plan = plan_in_order(spans, max_read_bytes=limit)

    pieces = [piece for record in records for piece in record if piece[2]]
    assert bytes(execute(plan, files)) == b"".join(
        files[file][offset : offset + length] for file, offset, length in pieces
    )
    ends = np.cumsum(spans.lengths)
    solid = spans.lengths > 0
    assert plan.positions[solid].tolist() == (ends - spans.lengths)[solid].tolist()
    assert plan.files.tolist() == sorted(plan.files.tolist())
    assert plan.needed.tolist() == plan.lengths.tolist()
    assert all(0 < length <= limit for length in plan.lengths.tolist())
    runs: list[list[int]] = []
    for file, offset, length in pieces:
        if runs and runs[-1][:2] == [file, offset]:
            runs[-1] = [file, offset + length, runs[-1][2] + length]
        else:
            runs.append([file, offset + length, length])
    assert len(plan.offsets) == sum(-(-length // limit) for _, _, length in runs)


@given(some_records, st.sampled_from([1, 16, 512]), st.integers(0, 900))
def test_long_reads_are_cut(
    records: list[list[tuple[int, int, int]]], alignment: int, more_bytes: int
) -> None:
    """No read exceeds the limit, and the pieces are found where they were without one."""
    spans, files = spans_of(records), contents()
    limit = alignment + more_bytes

    plan = plan_reads(spans, alignment=alignment, max_read_bytes=limit)

    whole = plan_reads(spans, alignment=alignment)
    assert execute(plan, files) == execute(whole, files)
    assert plan.positions.tolist() == whole.positions.tolist()
    check_form(plan, alignment, limit)
    longest = limit // alignment * alignment
    assert len(plan.offsets) == sum(-(-length // longest) for length in whole.lengths.tolist())


def check_form(plan: ReadPlan, alignment: int, max_read_bytes: int) -> None:
    """Sorted, disjoint, aligned, no holes in the buffer; `needed` ends within the last block."""
    reads = list(
        zip(plan.files.tolist(), plan.offsets.tolist(), plan.lengths.tolist(), strict=True)
    )
    for (file, offset, length), (next_file, next_offset, _) in zip(
        reads[:-1], reads[1:], strict=True
    ):
        assert file < next_file or (file == next_file and offset + length <= next_offset)
    assert not (plan.offsets % alignment).any() and not (plan.lengths % alignment).any()
    assert ((plan.lengths > 0) & (plan.lengths <= max_read_bytes)).all()
    assert ((plan.needed > plan.lengths - alignment) & (plan.needed <= plan.lengths)).all()
    ends = np.cumsum(plan.lengths)
    assert plan.destinations.tolist() == [0, *ends.tolist()][: len(reads)]
    assert plan.buffer_bytes == (ends[-1] if len(ends) else 0)


def test_a_piece_larger_than_a_system_call_reads() -> None:
    """5 GiB at once are three reads of at most 0x7ffff000 bytes."""
    plan = plan_reads(spans_of([[(0, 100, 5 << 30)]]), alignment=4096)

    assert plan.offsets.tolist() == [0, 0x7FFFF000, 2 * 0x7FFFF000]
    assert plan.lengths.sum() == (5 << 30) + 4096
    assert plan.needed.sum() == (5 << 30) + 100
    assert str(plan) == "3 reads of 5368713216 bytes for 1 pieces of 1 records"


def test_offsets_beyond_32_bits() -> None:
    """Neighbours across 2^31 and 2^32 share a read, like any others."""
    records = [[(0, (1 << 31) - 1, 2)], [(0, (1 << 32) - 3, 3)], [(0, 1 << 32, 5)]]

    plan = plan_reads(spans_of(records))

    assert plan.offsets.tolist() == [(1 << 31) - 1, (1 << 32) - 3]
    assert plan.lengths.tolist() == [2, 8]
    assert plan.positions.tolist() == [0, 2, 5]


@dataclass(frozen=True)
class Wrong:
    """A request that makes no sense, and words of its message."""

    message: str
    spans: Spans
    alignment: int = 1
    max_read_bytes: int = MAX_READ_BYTES


GOOD = spans_of([[(0, 0, 1)], [(0, 5, 1)]])
WRONG = {
    "alignment 0": Wrong("alignment is not a power of two: got 0", GOOD, 0),
    "alignment 3": Wrong("alignment is not a power of two: got 3", GOOD, 3),
    "limit": Wrong("max_read_bytes is too small: got 511, expected at least", GOOD, 512, 511),
    "negative offset": Wrong(
        "negative offset or length: got offset -1, length 1; in piece 1",
        spans_of([[(0, 3, 1)], [(0, -1, 1)]]),
    ),
    "negative length": Wrong(
        "negative offset or length: got offset 3, length -2; in piece 0", spans_of([[(0, 3, -2)]])
    ),
    "beyond": Wrong(
        "lies beyond the end of any file: got offset 9223372036854775800, length 100; in piece 1",
        spans_of([[(0, 3, 1)], [(0, (1 << 63) - 8, 100)]]),
    ),
    "few lengths": Wrong(
        "the arrays of the spans do not fit together: got 2 files, 2 offsets, 1 lengths",
        Spans(GOOD.files, GOOD.offsets, GOOD.lengths[:1], GOOD.starts),
    ),
    "no starts": Wrong(
        "do not fit together", Spans(GOOD.files, GOOD.offsets, GOOD.lengths, GOOD.starts[:0])
    ),
    "late start": Wrong(
        "do not fit together", Spans(GOOD.files, GOOD.offsets, GOOD.lengths, GOOD.starts[1:])
    ),
    "early end": Wrong(
        "do not fit together", Spans(GOOD.files, GOOD.offsets, GOOD.lengths, GOOD.starts[:-1])
    ),
    "starts descend": Wrong(
        "do not fit together",
        Spans(GOOD.files, GOOD.offsets, GOOD.lengths, np.array([0, 2, 1, 2])),
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_what_makes_no_sense_is_refused(wrong: Wrong) -> None:
    with pytest.raises(DataError, match=wrong.message):
        plan_reads(wrong.spans, alignment=wrong.alignment, max_read_bytes=wrong.max_read_bytes)
