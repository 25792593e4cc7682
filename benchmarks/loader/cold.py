"""What makes a run cold: nothing of the files in memory, and less memory than they would take."""

import ctypes
import os
import time
from pathlib import Path
from typing import final

__all__ = ["MemoryGroup", "forget", "processor_s", "remember", "resident_bytes"]

_CONTROLLER = Path("/sys/fs/cgroup/memory")  # of version 1
_CACHESTAT_CALL = 451  # Linux 6.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@final
class MemoryGroup:
    """A control group for one process and its children, below the one that this process is in.

    What a process has in memory when it is added is not counted: only what it takes from then on,
    and every page of a file that it or a child of it brings in.

    Args:
        name: of the group.

    Attributes:
        refusal: why there is no limit; None where there is one.
    """

    def __init__(self, name: str) -> None:
        self.refusal: str | None = None
        try:
            lines = Path("/proc/self/cgroup").read_text().splitlines()
            own = next((line.split(":")[2] for line in lines if ":memory:" in line), None)
            if own is None:
                raise OSError("the memory controller of version 1 is not mounted")
            self._folder = _CONTROLLER / own.strip("/") / name
            self._folder.mkdir()
        except OSError as error:
            self.refusal = f"no memory limit: {error}"

    def add(self, process: int) -> None:
        """The process and the children that it will have are in the group from now on."""
        self._write("cgroup.procs", str(process))

    def limit(self, num_bytes: int | None) -> None:
        """How much they may use from now on; None is as much as there is."""
        self._write("memory.limit_in_bytes", "-1" if num_bytes is None else str(num_bytes))

    def close(self) -> None:
        """The group goes; its processes must have ended."""
        for _ in range(100):  # those that were killed may take a moment
            try:
                if self.refusal is None:
                    self._folder.rmdir()
                return
            except OSError:
                time.sleep(0.05)

    def _write(self, name: str, text: str) -> None:
        if self.refusal is None:
            (self._folder / name).write_text(text)


def forget(files: list[Path]) -> str:
    """Nothing of the files stays in memory; says how that was reached."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")  # mapped pages, folders and inodes too
    except OSError:
        return "POSIX_FADV_DONTNEED"
    return "drop_caches"


def resident_bytes(files: list[Path]) -> int | None:
    """How much of the files memory has; None where the system does not tell."""
    system_call = ctypes.CDLL(None).syscall
    whole, answer = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 5)()  # the first: pages in memory
    num_pages = 0
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        failed = system_call(_CACHESTAT_CALL, descriptor, whole, answer, 0)
        os.close(descriptor)
        if failed:
            return None
        num_pages += answer[0]
    return num_pages * os.sysconf("SC_PAGE_SIZE")


def remember(files: list[Path]) -> None:
    """Reads the files through, so that memory has them."""
    buffer = bytearray(8 << 20)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def processor_s() -> tuple[float, float]:
    """User and system seconds of this process and all its children, ended or not."""
    times = os.times()
    user, system = times.user + times.children_user, times.system + times.children_system
    waiting = _children(os.getpid())
    while waiting:
        child = waiting.pop()
        try:
            words = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        # User and system time, and those of its children that have ended (proc_pid_stat(5)).
        ticks = [int(word) for word in words[11:15]]
        user += (ticks[0] + ticks[2]) / _TICKS_PER_S
        system += (ticks[1] + ticks[3]) / _TICKS_PER_S
        waiting += _children(child)
    return user, system


def _children(process: int) -> list[int]:
    """Those of all its threads."""
    found = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += [int(word) for word in thread.read_text().split()]
        except OSError:
            continue
    return found
