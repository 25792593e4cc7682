"""Moves tensors between stages: in one process, or through torch.distributed."""

import struct
from collections import deque
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Protocol, final

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.errors import ModelError, PeerLostError, RunError
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.prompt import prompt_threads
from headrace.pipeline.stage import Crossing
from headrace.pipeline.values import TENSOR

__all__ = ["Distributed", "InProcess", "Link", "Transport", "decode", "encode", "span"]

MAX_TENSORS = 64
MAX_DIMENSIONS = 8
WIRE_VERSION = 3
_GOODBYE = -1
_PATIENCE_S = 3.0
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_PER_TENSOR = 3 + 2 * MAX_DIMENSIONS
_FIXED = 6
_HEADER = _FIXED + MAX_TENSORS * _PER_TENSOR


class Transport(Protocol):
    """One stage's ends of the channels to its neighbours.

    ``forward`` tells the direction: outputs to the next stage, or gradients to the one before.
    """

    def send(self, micro_batch: int, crossing: Crossing, *, forward: bool) -> None:
        """Starts sending; the tensors must not change until they are delivered."""

    def receive(self, micro_batch: int, *, forward: bool) -> Crossing:
        """Waits for what the neighbour sent for this micro-batch, in the neighbour's order."""

    def delivered(self, micro_batch: int, *, forward: bool) -> None:
        """The schedule implies that the neighbour has received this."""

    def flush(self) -> None:
        """Waits until everything sent has been delivered."""

    def close(self) -> None:
        """Ends the channels when all is done."""

    def abandon(self) -> None:
        """Ends the channels after an error: tells the neighbours, and waits for none of them."""


def span(tensor: Tensor) -> Tensor:
    """The stretch of memory that a tensor's elements lie in, as a tensor of one dimension."""
    if tensor.numel() == 0:
        return tensor.new_empty(0)
    length = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((length,), (1,))


@final
class InProcess:
    """Queues that stages of one process share; each receive is a copy, as over a wire."""

    def __init__(self, stage: int, channels: dict[tuple[int, bool], deque[tuple[int, Crossing]]]):
        self._stage = stage
        self._channels = channels

    def send(self, micro_batch: int, crossing: Crossing, *, forward: bool) -> None:
        """Puts the crossing into the neighbour's queue."""
        neighbour = self._stage + (1 if forward else -1)
        self._channels.setdefault((neighbour, forward), deque()).append((micro_batch, crossing))

    def receive(self, micro_batch: int, *, forward: bool) -> Crossing:
        """Takes the next crossing from this stage's queue."""
        number, crossing = self._channels[self._stage, forward].popleft()
        _require_number(number, micro_batch)
        return crossing._replace(tensors=tuple(_copy(tensor) for tensor in crossing.tensors))

    def delivered(self, micro_batch: int, *, forward: bool) -> None:
        """Nothing is waited for."""

    def flush(self) -> None:
        """Nothing is waited for."""

    def close(self) -> None:
        """Nothing to end."""

    def abandon(self) -> None:
        """Forgets what was on its way."""
        self._channels.clear()


def _copy(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    return span(tensor).clone().as_strided(tensor.shape, tensor.stride())


def _require_number(number: int, micro_batch: int) -> None:
    if number != micro_batch:
        raise RunError("micro-batches came in another order", got=number, expected=micro_batch)


@final
class Link:
    """One direction between two neighbours: a header of fixed size, the form of a value that is
    more than a tensor, a mask of valid records if there is one, then each tensor's memory.

    Header, form and mask go over gloo, so that shapes are known without waiting for a device; the
    memory goes over the device's own backend (gloo, or NCCL, which no GPU has run yet).
    """

    def __init__(self, mesh: Mesh, peer: int, *, forward: bool) -> None:
        self._device = mesh.device
        self._peer = peer
        self._headers, self._payloads = mesh.groups(forward=forward)
        self.is_amid = False
        """A message was begun and not sent whole: the peer would take the next header for the rest
        of it, and gloo ends a process that gets more bytes than it waits for."""

    def send(self, micro_batch: int, crossing: Crossing) -> list[tuple[dist.Work, Tensor]]:
        """Starts sending; returns what to wait for, with the tensors to keep until then."""
        header = encode(micro_batch, crossing)
        self.is_amid = True
        works = [(self._isend(header, self._headers), header)]
        if crossing.form != TENSOR:
            form = torch.frombuffer(bytearray(crossing.form.encode()), dtype=torch.uint8)
            works.append((self._isend(form, self._headers), form))
        if crossing.valid is not None:
            mask = crossing.valid.view(torch.uint8)
            works.append((self._isend(mask, self._headers), mask))
        for tensor in crossing.tensors:
            if tensor is not None and tensor.numel():
                stretch = span(tensor).view(torch.uint8)
                works.append((self._isend(stretch, self._payloads), stretch))
        self.is_amid = False
        return works

    def goodbye(self) -> tuple[dist.Work, Tensor]:
        """Starts telling the peer that nothing more will come."""
        header = encode(_GOODBYE, Crossing(()))
        return self._isend(header, self._headers), header

    def receive(self) -> tuple[int, Crossing] | None:
        """Waits for the next message; None for a goodbye."""
        header = torch.empty(_HEADER, dtype=torch.int64)
        self._recv(header, self._headers)
        micro_batch, crossing, layouts = decode(header)
        if micro_batch == _GOODBYE:
            return None
        if crossing.form != TENSOR:
            form = torch.empty(len(crossing.form), dtype=torch.uint8)
            self._recv(form, self._headers)
            crossing = crossing._replace(form=form.numpy().tobytes().decode())
        if crossing.valid is not None:
            self._recv(crossing.valid.view(torch.uint8), self._headers)
        tensors: list[Tensor | None] = []
        for layout in layouts:
            if layout is None:
                tensors.append(None)
                continue
            dtype, shape, strides = layout
            meta = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            stretch = torch.empty(span(meta).numel(), dtype=dtype, device=self._device)
            if meta.numel():
                self._recv(stretch.view(torch.uint8), self._payloads)
            tensors.append(stretch.as_strided(shape, strides))
        return micro_batch, crossing._replace(tensors=tuple(tensors))

    def _isend(self, tensor: Tensor, group: dist.ProcessGroup) -> dist.Work:
        work = dist.isend(tensor, self._peer, group=group)
        assert work is not None
        return work

    def _recv(self, tensor: Tensor, group: dist.ProcessGroup) -> None:
        work = dist.irecv(tensor, self._peer, group=group)
        assert work is not None
        work.wait()


def encode(micro_batch: int, crossing: Crossing) -> Tensor:
    """The header: int64[_HEADER] of version, micro-batch, weight, bytes of the form (0 for that of
    a tensor), records in the mask of valid ones (0 for none), number of tensors, then each tensor's
    layout.

    Raises:
        ModelError: more tensors or dimensions than a header holds, or a dtype without a number.
    """
    if len(crossing.tensors) > MAX_TENSORS:
        raise ModelError(
            "too many tensors cross a cut", got=len(crossing.tensors), expected=f"<= {MAX_TENSORS}"
        )
    weight = struct.unpack("<q", struct.pack("<d", crossing.weight))[0]
    mask_records = 0 if crossing.valid is None else len(crossing.valid)
    form_bytes = 0 if crossing.form == TENSOR else len(crossing.form)
    words = [WIRE_VERSION, micro_batch, weight, form_bytes, mask_records]
    words.append(len(crossing.tensors))
    wants = crossing.has_gradient or (False,) * len(crossing.tensors)
    for tensor, has_gradient in zip(crossing.tensors, wants, strict=True):
        words += _layout_words(tensor, has_gradient)
    return torch.tensor(words + [0] * (_HEADER - len(words)), dtype=torch.int64)


def _layout_words(tensor: Tensor | None, has_gradient: bool) -> list[int]:
    if tensor is None:
        return [-1] + [0] * (_PER_TENSOR - 1)
    if tensor.ndim > MAX_DIMENSIONS or tensor.dtype not in _DTYPES:
        raise ModelError(
            "a tensor that cannot cross a cut",
            got=f"{tensor.dtype} of {tensor.ndim} dimensions",
            expected=f"<= {MAX_DIMENSIONS} dimensions and one of "
            + ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES),
        )
    gap = [0] * (MAX_DIMENSIONS - tensor.ndim)
    form = [_DTYPES.index(tensor.dtype), int(has_gradient), tensor.ndim]
    return form + list(tensor.shape) + gap + list(tensor.stride()) + gap


Layout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]


def decode(header: Tensor) -> tuple[int, Crossing, list[Layout | None]]:
    """The micro-batch, the crossing without its tensors and with room for its form and mask, and
    each tensor's dtype, shape and strides.

    Raises:
        RunError: the peer speaks another version of the header.
    """
    words: list[int] = header.tolist()
    version, micro_batch, weight, form_bytes, mask_records, num_tensors = words[:_FIXED]
    if version != WIRE_VERSION:
        raise RunError(
            "the neighbour speaks another version of headrace",
            got=f"header version {version}",
            expected=WIRE_VERSION,
            remedy="install the same version everywhere",
        )
    layouts: list[Layout | None] = []
    wants = []
    for number in range(num_tensors):
        start = _FIXED + number * _PER_TENSOR
        kind, has_gradient, ndim = words[start : start + 3]
        wants.append(bool(has_gradient))
        if kind < 0:
            layouts.append(None)
            continue
        shape = start + 3
        strides = shape + MAX_DIMENSIONS
        layouts.append(
            (
                _DTYPES[kind],
                tuple(words[shape : shape + ndim]),
                tuple(words[strides : strides + ndim]),
            )
        )
    crossing = Crossing(
        (),
        " " * form_bytes or TENSOR,
        tuple(wants),
        struct.unpack("<d", struct.pack("<q", weight))[0],
        torch.empty(mask_records, dtype=torch.bool) if mask_records else None,
    )
    return micro_batch, crossing, layouts


@final
class Distributed:
    """Channels to the neighbouring ranks.

    A thread a direction receives whatever comes, so that transfers overlap with computing and no
    stage waits for a neighbour to be ready to receive.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        last = mesh.num_stages - 1
        peers = {True: mesh.stage + 1, False: mesh.stage - 1}  # where outputs, gradients go
        self._outgoing = {
            forward: Link(mesh, peer, forward=forward)
            for forward, peer in peers.items()
            if 0 <= peer <= last
        }
        self._sent: dict[bool, deque[tuple[int, list[tuple[dist.Work, Tensor]]]]] = {
            forward: deque() for forward in self._outgoing
        }
        self._arrived: dict[bool, SimpleQueue[tuple[int, Crossing] | BaseException | None]] = {}
        self._threads: list[Thread] = []
        self._goodbyes: list[tuple[dist.Work, Tensor]] = []
        for forward in (True, False):
            peer = peers[not forward]
            if 0 <= peer <= last:
                self._arrived[forward] = SimpleQueue()
                link = Link(mesh, peer, forward=forward)
                thread = Thread(target=self._listen, args=(link, forward), daemon=True)
                with prompt_threads():
                    thread.start()
                self._threads.append(thread)

    def _listen(self, link: Link, forward: bool) -> None:
        """Receives until the neighbour says goodbye or is gone."""
        arrived = self._arrived[forward]
        try:
            while (message := link.receive()) is not None:
                arrived.put(message)
            arrived.put(None)
        except BaseException as error:  # raised again by the stage's own thread
            arrived.put(error)

    def send(self, micro_batch: int, crossing: Crossing, *, forward: bool) -> None:
        """Starts sending to the neighbour."""
        with self._peer_lost(forward):
            works = self._outgoing[forward].send(micro_batch, crossing)
        self._sent[forward].append((micro_batch, works))

    def receive(self, micro_batch: int, *, forward: bool) -> Crossing:
        """The next message of the neighbour, which must be that of the micro-batch."""
        message = self._arrived[forward].get()
        if message is None or isinstance(message, BaseException):
            self._arrived[forward].put(message)
            if isinstance(message, RunError):
                raise message
            raise self._lost(not forward) from message
        _require_number(message[0], micro_batch)
        return message[1]

    def delivered(self, micro_batch: int, *, forward: bool) -> None:
        """Waits, which takes no time, for the sends up to this one, and lets their tensors go."""
        sent = self._sent[forward]
        while sent and sent[0][0] <= micro_batch:
            self._wait(forward)

    def flush(self) -> None:
        """Waits for all sends."""
        for forward, sent in self._sent.items():
            while sent:
                self._wait(forward)

    def _wait(self, forward: bool) -> None:
        _, works = self._sent[forward].popleft()
        with self._peer_lost(forward):
            for work, _ in works:
                work.wait()

    def close(self) -> None:
        """Says goodbye, and waits for the neighbours' goodbyes."""
        self.flush()
        for work, _ in [link.goodbye() for link in self._outgoing.values()]:
            work.wait()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """Says goodbye without waiting for it to be heard; neighbours that hear it do the same.

        So the listening threads end in all processes, which a process must not outlive: torch
        aborts a process that ends while a thread of it waits in gloo. A neighbour that is busy for
        longer than the wait is left to its launcher.
        """
        for link in self._outgoing.values():
            if link.is_amid:
                continue  # the neighbour hears of the end of the connection
            with suppress(RuntimeError):  # a neighbour that is gone needs no goodbye
                self._goodbyes.append(link.goodbye())
        for thread in self._threads:
            thread.join(_PATIENCE_S)

    def _lost(self, forward: bool) -> PeerLostError:
        peer = self._mesh.stage + (1 if forward else -1)
        return PeerLostError(
            f"stage {self._mesh.stage} lost stage {peer}",
            got="a closed connection",
            remedy=f"the error of stage {peer}'s process tells why",
        )

    def _peer_lost(self, forward: bool) -> "_Translate":
        return _Translate(self._lost(forward))


class _Translate:
    """Raises another error in place of torch.distributed's own."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and not isinstance(error, RunError):
            raise self._error from error
