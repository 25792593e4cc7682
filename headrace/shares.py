"""How a batch is cut into micro-batches, and which of them a replica takes."""

__all__ = ["even_sizes", "replica_rows"]


def even_sizes(num_records: int, num_parts: int) -> list[int]:
    """Sizes of the micro-batches of a batch: as even as can be, the larger ones first, none empty.

    A batch of fewer records than parts becomes that many micro-batches of one record.

    >>> even_sizes(10, 4), even_sizes(3, 4), even_sizes(0, 4)
    ([3, 3, 2, 2], [1, 1, 1], [])
    """
    num_parts = min(num_parts, num_records)
    if num_parts == 0:
        return []
    size, larger = divmod(num_records, num_parts)
    return [size + 1] * larger + [size] * (num_parts - larger)


def replica_rows(
    num_records: int, num_parts: int, replica: int, num_replicas: int
) -> list[tuple[int, int]]:
    """Rows [start, stop) of the micro-batches that a replica takes: number r, r + R, r + 2R, ...

    The micro-batches are those of the whole batch, so the sequence of batches never depends on the
    number of replicas R.

    >>> replica_rows(10, 4, replica=1, num_replicas=2)
    [(3, 6), (8, 10)]
    """
    rows, start = [], 0
    for number, size in enumerate(even_sizes(num_records, num_parts)):
        if number % num_replicas == replica:
            rows.append((start, start + size))
        start += size
    return rows
