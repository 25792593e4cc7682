"""How busy every stage is, known where the last stage is."""

import time
from collections.abc import Callable, Mapping
from typing import final

from headrace.pipeline.mesh import Mesh

__all__ = ["BusyBoard"]


@final
class BusyBoard:
    """Each process says how busy its stages are; the last stage's process reads them all.

    Args:
        mesh: how the processes know of each other; None where all stages are in this one.
        busy_s: stage -> seconds in which it computed so far, for the stages of this process.
    """

    def __init__(self, mesh: Mesh | None, busy_s: Callable[[], Mapping[int, float]]) -> None:
        self._mesh = mesh
        self._busy_s = busy_s
        self.start_epoch()

    def start_epoch(self) -> None:
        """Shares count from here."""
        self._start = self._told = time.perf_counter()
        self._before = self._busy_s()

    def tell(self) -> None:
        """Says the shares of this process's stages so far, at most twice a second."""
        now = time.perf_counter()
        if self._mesh is not None and now - self._told > 0.5:
            self._told = now
            self._mesh.publish(f"busy/{self._mesh.stage}", self._own())

    def shares(self) -> dict[int, float]:
        """stage -> share of this epoch's time, 0 to 1, for every stage that has told so far."""
        shares = dict(self._own())
        if self._mesh is not None:
            for stage in range(self._mesh.num_stages):
                told = self._mesh.read_if_published(f"busy/{stage}") or {}
                shares |= {int(k): share for k, share in told.items() if int(k) not in shares}
        return dict(sorted(shares.items()))

    def _own(self) -> dict[int, float]:
        seconds = max(time.perf_counter() - self._start, 1e-9)
        return {k: (busy - self._before[k]) / seconds for k, busy in self._busy_s().items()}
