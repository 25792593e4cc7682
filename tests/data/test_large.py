"""Records and groups of hundreds of megabytes, in a process whose memory is watched."""

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

LARGE_BYTES = 300 << 20
LARGE = (17, 500, 501)

READ_TAR = """
import hashlib, json, resource, sys
import headrace

records = headrace.open(sys.argv[1])
loader = headrace.Loader(records, 16, batches_ahead=2, direct=sys.argv[2] == "direct")
found = {}
for batch in loader:
    for record in batch["bin"]:
        found.setdefault(hashlib.blake2b(record, digest_size=16).hexdigest(), len(record))
    record = batch = None
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"found": found, "peak_bytes": peak_bytes}))
"""

READ_PARQUET = """
import json, resource, sys
import headrace

records = headrace.open(sys.argv[1])
loader = headrace.Loader(records, 1000, direct=False)
for number, batch in zip(range(20), loader):
    rows = loader.order.indices(range(number * 1000, (number + 1) * 1000), len(records), 0)
    assert (batch["x"] == rows).all()
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"peak_bytes": peak_bytes}))
"""


def read(script: str, *arguments: str | Path) -> dict:
    """What a process of its own has to say."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """1000 records of 1 to 3000 bytes, and three of 300 MB; digests and sizes of all."""
    path = tmp_path_factory.mktemp("large") / "x.tar"
    random = np.random.default_rng(0)
    sizes = random.integers(1, 3000, 1000)
    sizes[list(LARGE)] = LARGE_BYTES
    expected = {}
    with tarfile.open(path, "w") as tar:
        for number, size in enumerate(sizes.tolist()):
            content = random.bytes(size)
            member = tarfile.TarInfo(f"{number:04}.bin")
            member.size = size
            tar.addfile(member, io.BytesIO(content))
            expected[hashlib.blake2b(content, digest_size=16).hexdigest()] = size
    return path, expected


@pytest.mark.slow
@pytest.mark.parametrize("way", ["direct", "buffered"])
def test_large_records_among_small_ones(archive: tuple[Path, dict[str, int]], way: str) -> None:
    """Each comes once and whole. Memory holds those that are on their way, twice at the most: as
    they were read and as bytes."""
    path, expected = archive

    found = read(READ_TAR, path, way)

    assert found["found"] == expected
    assert found["peak_bytes"] < 2 * len(LARGE) * LARGE_BYTES + (400 << 20)


@pytest.mark.slow
def test_a_large_group(tmp_path: Path) -> None:
    """Values are right; memory holds no more than the group as it lies in the file, as pyarrow has
    it, and as an array."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    num_records = 64 << 20
    table = pyarrow.table({"x": np.arange(num_records)})
    parquet.write_table(
        table,
        tmp_path / "x.parquet",
        row_group_size=num_records,
        compression="none",
        use_dictionary=False,
    )
    del table

    found = read(READ_PARQUET, tmp_path / "x.parquet")

    assert found["peak_bytes"] < 3 * 8 * num_records + (400 << 20)
