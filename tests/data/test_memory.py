"""The memory that may still be used, from made-up files of the system."""

from pathlib import Path

from headrace.data.memory import available_memory_bytes

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MACHINE = {"proc/meminfo": "MemTotal: 16777216 kB\nMemFree: 100 kB\nMemAvailable:  8388608 kB\n"}


def test_the_machines_own(tmp_path: Path) -> None:
    """Outside of any container it is MemAvailable."""
    assert available_memory_bytes(write(tmp_path, MACHINE)) == 8 * GIB


def test_a_container_of_control_groups_version_2(tmp_path: Path) -> None:
    """Limit - usage + what only caches files."""
    group = {
        "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
        "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory.stat": f"anon 5\nfile 7\ninactive_file {GIB}\nactive_file 4096\n",
    }
    assert available_memory_bytes(write(tmp_path, MACHINE | group)) == 2 * GIB + 4096


def test_a_container_of_control_groups_version_1(tmp_path: Path) -> None:
    group = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": "cache 9\ninactive_file 100\nactive_file 200\n",
    }
    assert available_memory_bytes(write(tmp_path, MACHINE | group)) == GIB + 300


def test_no_limit(tmp_path: Path) -> None:
    """Version 2 says max, version 1 a number larger than any memory."""
    groups = {
        "sys/fs/cgroup/memory.max": "max\n",
        "sys/fs/cgroup/memory.current": "1\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 1\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\n",
    }
    assert available_memory_bytes(write(tmp_path, MACHINE | groups)) == 8 * GIB


def test_more_used_than_allowed(tmp_path: Path) -> None:
    """A limit that was lowered below the usage leaves nothing, not less than nothing."""
    group = {
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
    }
    assert available_memory_bytes(write(tmp_path, MACHINE | group)) == 0


def test_no_answer_at_all(tmp_path: Path) -> None:
    """Without those files, all memory of the machine: at least this very process fits in it."""
    assert available_memory_bytes(tmp_path) > 1 << 26


def test_this_machine() -> None:
    assert 0 < available_memory_bytes() < 1 << 50
