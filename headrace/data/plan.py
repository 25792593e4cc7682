"""A batch of records as few, merged, aligned reads, and where each piece lands."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError

__all__ = ["MAX_READ_BYTES", "ReadPlan", "Spans", "pieces_of", "plan_in_order", "plan_reads"]

MAX_READ_BYTES = 0x7FFFF000
"""The most bytes that one read system call returns on Linux."""

_MAX_FILE_BYTES = 1 << 62  # far beyond any file system; sums of such numbers still fit int64


@dataclass(frozen=True)
class Spans:
    """Where the bytes of R records lie: record r is pieces starts[r]:starts[r + 1], in order.

    Args:
        files: int32[P], the number of the file that each piece lies in.
        offsets: int64[P], its first byte there.
        lengths: int64[P], its bytes; 0 is allowed.
        starts: int64[R + 1], the first piece of each record; starts[0] is 0, starts[R] is P.
    """

    files: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def num_records(self) -> int:
        """R."""
        return len(self.starts) - 1

    @property
    def record_lengths(self) -> NDArray[np.int64]:
        """int64[R], all bytes of each record."""
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        return np.diff(ends[self.starts])

    def taken(self, rows: NDArray[np.int64]) -> "Spans":
        """Those of some records."""
        which, starts = pieces_of(self.starts, rows)
        return Spans(self.files[which], self.offsets[which], self.lengths[which], starts)


@dataclass(frozen=True)
class ReadPlan:
    """E reads that bring all pieces of some spans into one buffer.

    The reads are sorted by file, and aligned at both ends, so the last one of a file may ask for
    more than the file has; ``needed`` says how much of each must arrive.

    Args:
        spans: what was asked for.
        files: int32[E].
        offsets: int64[E], multiples of the alignment.
        lengths: int64[E], multiples of the alignment, at most MAX_READ_BYTES.
        needed: int64[E], bytes from the read's start up to the end of its last piece.
        destinations: int64[E], where in the buffer each read goes: side by side, no holes.
        positions: int64[P], where in the buffer each piece is then found.
        buffer_bytes: size of the buffer.
    """

    spans: Spans
    files: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    needed: NDArray[np.int64]
    destinations: NDArray[np.int64]
    positions: NDArray[np.int64]
    buffer_bytes: int

    def __str__(self) -> str:
        return (
            f"{len(self.offsets)} reads of {self.buffer_bytes} bytes for {len(self.positions)} "
            f"pieces of {self.spans.num_records} records"
        )


def pieces_of(
    starts: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pieces of some records, and where among these those of each begin."""
    counts = np.diff(starts)[rows]
    firsts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return np.arange(firsts[-1]) + np.repeat(starts[rows] - firsts[:-1], counts), firsts


def plan_reads(
    spans: Spans, *, alignment: int = 1, max_read_bytes: int = MAX_READ_BYTES
) -> ReadPlan:
    """The fewest aligned reads that cover the spans, each byte read once.

    Pieces that overlap, touch or repeat share a read; so do pieces on the same or neighbouring
    aligned blocks.

    Args:
        spans: the pieces; of a record that appears twice the bytes are read once.
        alignment: a power of two; 1 for buffered reads, the device's block for direct ones.
        max_read_bytes: reads longer than this are cut into several.

    Raises:
        DataError: the alignment is no power of two or exceeds max_read_bytes, an offset or length
            is negative or absurdly large, or the arrays of the spans do not fit together.
    """
    _check(spans, alignment, max_read_bytes)
    solid = spans.lengths > 0
    some_empty = not solid.all()
    files, offsets, lengths = spans.files, spans.offsets, spans.lengths
    if some_empty:
        files, offsets, lengths = files[solid], offsets[solid], lengths[solid]
    if len(offsets) == 0:
        return _nothing(spans)
    begins = offsets & -alignment
    order = _order(files, begins)
    begins, files, ends = begins[order], files[order], (offsets + lengths)[order]
    reach = _reach(files, (ends + (alignment - 1)) & -alignment)

    is_first = np.empty(len(order), bool)
    is_first[0] = True
    np.greater(begins[1:], reach[:-1], out=is_first[1:])
    if files[0] != files[-1]:
        is_first[1:] |= files[1:] != files[:-1]
    # A piece lies as far from the start of its read in the buffer as it does in the file.
    if is_first.all():
        read_files, read_offsets = files, begins
        read_lengths, needed = reach - begins, ends - begins
        destinations = np.cumsum(read_lengths) - read_lengths
        shifts = destinations - begins
    else:
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(order)) - 1
        read_files, read_offsets = files[firsts], begins[firsts]
        read_lengths = reach[lasts] - read_offsets
        needed = np.maximum.reduceat(ends, firsts) - read_offsets
        destinations = np.cumsum(read_lengths) - read_lengths
        shifts = np.repeat(destinations - read_offsets, lasts - firsts + 1)
    landed = np.empty(len(order), np.int64)
    landed[order] = shifts
    landed += offsets
    positions = landed
    if some_empty:
        positions = np.zeros(len(spans.offsets), np.int64)
        positions[solid] = landed
    buffer_bytes = int(destinations[-1] + read_lengths[-1])
    reads = read_files, read_offsets, read_lengths, needed, destinations
    longest = max_read_bytes - max_read_bytes % alignment
    if int(read_lengths.max()) > longest:
        reads = _cut(*reads, longest)
    return ReadPlan(spans, *reads, positions, buffer_bytes)


def plan_in_order(spans: Spans, *, max_read_bytes: int = MAX_READ_BYTES) -> ReadPlan:
    """Unaligned reads that bring the pieces into the buffer one after another, in their own order.

    So records of one piece and one size are an array as they come. Pieces share a read if they
    follow one another in the file as well; what is wanted twice is read twice.

    Args:
        spans: the pieces.
        max_read_bytes: reads longer than this are cut into several.

    Raises:
        DataError: as of plan_reads.
    """
    _check(spans, 1, max_read_bytes)
    files, offsets, lengths = spans.files, spans.offsets, spans.lengths
    destinations = positions = np.cumsum(lengths) - lengths
    if not lengths.all():
        solid = lengths > 0
        files, offsets, lengths = files[solid], offsets[solid], lengths[solid]
        destinations = positions[solid]
    if len(offsets) == 0:
        return _nothing(spans)
    buffer_bytes = int(destinations[-1] + lengths[-1])
    goes_on = (offsets[1:] == offsets[:-1] + lengths[:-1]) & (files[1:] == files[:-1])
    if goes_on.any():
        firsts = np.flatnonzero(np.concatenate([[True], ~goes_on]))
        lengths = np.add.reduceat(lengths, firsts)
        files, offsets, destinations = files[firsts], offsets[firsts], destinations[firsts]
    if (files[1:] < files[:-1]).any():
        order = np.argsort(files, kind="stable")
        files, offsets, lengths = files[order], offsets[order], lengths[order]
        destinations = destinations[order]
    reads = files, offsets, lengths, lengths, destinations
    if int(lengths.max()) > max_read_bytes:
        reads = _cut(*reads, max_read_bytes)
    return ReadPlan(spans, *reads, positions, buffer_bytes)


def _check(spans: Spans, alignment: int, max_read_bytes: int) -> None:
    num_pieces = len(spans.offsets)
    if alignment < 1 or alignment & (alignment - 1):
        raise DataError("alignment is not a power of two", got=alignment)
    if max_read_bytes < alignment:
        raise DataError(
            "max_read_bytes is too small",
            got=max_read_bytes,
            expected=f"at least the alignment, {alignment}",
        )
    if (
        not len(spans.files) == len(spans.lengths) == num_pieces
        or len(spans.starts) == 0
        or int(spans.starts[0]) != 0
        or int(spans.starts[-1]) != num_pieces
        or bool((spans.starts[1:] < spans.starts[:-1]).any())
    ):
        raise DataError(
            "the arrays of the spans do not fit together",
            got=f"{len(spans.files)} files, {num_pieces} offsets, {len(spans.lengths)} lengths, "
            f"starts {spans.starts[:1]}..{spans.starts[-1:]}",
            expected="as many of each, and starts that ascend from 0 to their number",
        )
    if num_pieces and (int(spans.offsets.min()) < 0 or int(spans.lengths.min()) < 0):
        piece = int(np.flatnonzero((spans.offsets < 0) | (spans.lengths < 0))[0])
        raise DataError(
            "a piece of a record has a negative offset or length",
            got=f"offset {spans.offsets[piece]}, length {spans.lengths[piece]}",
            where=f"piece {piece}",
        )
    if num_pieces and int(spans.offsets.max()) + int(spans.lengths.max()) > _MAX_FILE_BYTES:
        piece = int(np.argmax(spans.offsets.astype(np.float64) + spans.lengths))
        raise DataError(
            "a piece of a record lies beyond the end of any file",
            got=f"offset {spans.offsets[piece]}, length {spans.lengths[piece]}",
            where=f"piece {piece}",
        )


def _nothing(spans: Spans) -> ReadPlan:
    none = np.empty(0, np.int64)
    positions = np.zeros(len(spans.offsets), np.int64)
    return ReadPlan(spans, np.empty(0, np.int32), none, none, none, none, positions, 0)


def _order(files: NDArray[np.int32], begins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pieces sorted by file and first byte."""
    if bool((files == files[0]).all()):
        return np.argsort(begins)
    return np.lexsort((begins, files))


def _reach(files: NDArray[np.int32], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """How far the pieces so far extend in their file; the pieces are sorted by file."""
    if files[0] == files[-1]:
        return np.maximum.accumulate(stops)
    # Lay the files one after another on one line, so that one running maximum serves them all.
    changes = np.flatnonzero(files[1:] != files[:-1]) + 1
    groups = np.concatenate([[0], changes])
    sizes = np.maximum.reduceat(stops, groups)
    line = np.repeat(np.cumsum(sizes) - sizes, np.diff(np.append(groups, len(files))))
    reach: NDArray[np.int64] = np.maximum.accumulate(stops + line) - line
    return reach


def _cut(
    files: NDArray[np.int32],
    offsets: NDArray[np.int64],
    lengths: NDArray[np.int64],
    needed: NDArray[np.int64],
    destinations: NDArray[np.int64],
    longest: int,
) -> tuple[
    NDArray[np.int32],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
]:
    """Cuts reads that one system call cannot do; the parts land one after another, as one would."""
    num_parts = -(-lengths // longest)
    whole = np.repeat(np.arange(len(offsets)), num_parts)
    done = (
        np.arange(len(whole)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    ) * longest
    part_lengths = np.minimum(lengths[whole] - done, longest)
    part_needed = np.clip(needed[whole] - done, 0, part_lengths)
    return (
        files[whole],
        offsets[whole] + done,
        part_lengths,
        part_needed,
        destinations[whole] + done,
    )
