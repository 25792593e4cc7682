"""The one interpreter of actions; drives one stage."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor

from headrace.errors import HeadraceError, PeerLostError, StageError
from headrace.pipeline.actions import Action, Kind
from headrace.pipeline.batches import Arriving
from headrace.pipeline.clock import steps_ahead
from headrace.pipeline.masks import Expected
from headrace.pipeline.schedule import Schedule, with_transfers
from headrace.pipeline.stage import Crossing, Stage, crossing_of
from headrace.pipeline.stopwatch import Stopwatch
from headrace.pipeline.strategy import Strategy
from headrace.pipeline.transport import Transport
from headrace.pipeline.versions import Versions, Weights

__all__ = ["Interpreter", "OnBatch", "run_stage"]

OnBatch = Callable[[int, Tensor, int], None]
"""(number of the batch, its loss as a scalar tensor, its valid records); without any, loss 0"""


@final
class Interpreter:
    """Does the actions of one stage, from one drain to the next.

    Args:
        number: k.
        num_stages: n.
        stage: the layers.
        versions: their weights.
        transport: the channels to the neighbours.
        strategy: what the passes read.
    """

    def __init__(
        self,
        number: int,
        num_stages: int,
        stage: Stage,
        versions: Versions,
        transport: Transport,
        strategy: Strategy,
    ) -> None:
        self.number = number
        self.stage = stage
        self.versions = versions
        self.transport = transport
        self.stopwatch = Stopwatch(stage.device)
        self._is_first = number == 0
        self._is_last = number == num_stages - 1
        self._strategy = strategy
        self._does: Mapping[Kind, Callable[[int], None]] = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.UPDATE: self._update,
            Kind.SEND_FORWARD: self._send_forward,
            Kind.RECEIVE_FORWARD: self._receive_forward,
            Kind.SEND_BACKWARD: self._send_backward,
            Kind.RECEIVE_BACKWARD: self._receive_backward,
        }

    def begin(
        self,
        schedule: Schedule,
        batches: Arriving,
        *,
        on_batch: OnBatch | None = None,
        on_output: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """Starts a segment.

        Args:
            schedule: what is to be done.
            batches: the data.
            on_batch: called on the last stage after each update.
            on_output: called on the last stage with each (output, target); the passes then only
                predict: newest weights, no graph.
        """
        self._schedule = schedule
        self._batches = batches
        self._on_batch = on_batch
        self._on_output = on_output
        self._is_predicting = on_output is not None
        self._forward_steps = self._steps(self._strategy.forward, Kind.FORWARD)
        self._backward_steps = self._steps(self._strategy.backward, Kind.BACKWARD)
        self._gradients_delivered = self._delivered_gradients()
        self._arrived: dict[int, Crossing] = {}  # inputs
        self._leaving: dict[int, Crossing] = {}  # outputs
        self._returned: dict[int, Crossing] = {}  # gradients of outputs
        self._returning: dict[int, Crossing] = {}  # gradients of inputs
        self._read: dict[int, Weights] = {}
        self._weight: dict[int, float] = {}
        self._losses: list[Tensor] = []
        self.stage.train(not self._is_predicting)

    def _steps(self, read: Any, kind: Kind) -> Iterator[tuple[int, int]]:
        return steps_ahead(self._schedule, read, self.number, kind)

    def execute(self, action: Action) -> None:
        """Does one action.

        Raises:
            StageError: the user's layer or loss raised; the message names the action.
            PeerLostError: a neighbour is gone.
        """
        try:
            self._does[action.kind](action.number)
        except PeerLostError:
            raise
        except HeadraceError as error:
            batch = (
                action.number
                if action.kind is Kind.UPDATE
                else self._schedule.batch_of(action.number)
            )
            where = f"stage {self.number}, action {action}, batch {batch}"
            kind = StageError if isinstance(error, StageError) else type(error)
            raise kind(f"{error}", where=where) from (error.__cause__ or error)

    def finish(self) -> None:
        """Ends a segment: everything sent is delivered, nothing but weights and state remains."""
        self.transport.flush()
        self.versions.drain()

    # Passes

    def _forward(self, i: int) -> None:
        if self._is_first:
            inputs, valid = self._batches.inputs(i)
            crossing = crossing_of(inputs, self.stage.device, valid)
        else:
            crossing = self._arrived.pop(i)
        expected = self._batches.expected(i, crossing.valid) if self._is_last else None
        if self._is_predicting:
            self._predict(i, crossing, expected)
            return
        batch = self._schedule.batch_of(i)
        steps = self._next_steps(self._forward_steps, i)
        inputs = [tensor for tensor in crossing.tensors if tensor is not None]
        with self.stopwatch.running(), self.versions.forward(batch, steps, i, inputs) as weights:
            self._read[i] = weights
            if self._is_last:
                self._weight[i] = expected.weight if expected else 0.0
                loss = self.stage.forward_to_loss(i, crossing, weights.tensors, expected)
                if loss is not None:
                    self._losses.append(loss)
            else:
                self._leaving[i] = self.stage.forward(i, crossing, weights.tensors)

    def _predict(self, i: int, crossing: Crossing, expected: Expected | None) -> None:
        with self.stopwatch.running():
            if not self._is_last:
                self._leaving[i] = self.stage.predict(i, crossing)
            elif expected is not None and self._on_output is not None:
                self._on_output(*self.stage.predict_last(i, crossing, expected))

    def _backward(self, i: int) -> None:
        given = None
        if not self._is_last:
            returned = self._returned.pop(i)
            given, self._weight[i] = returned.tensors, returned.weight
        weight = self._weight.pop(i)
        steps = self._next_steps(self._backward_steps, i)
        with self.stopwatch.running():
            with self.versions.backward(self._schedule.batch_of(i), steps, self._read.pop(i)):
                of_inputs, of_weights = self.stage.backward(i, given)
            self.versions.add(of_weights, weight)
        if not self._is_first:
            self._returning[i] = Crossing(of_inputs, weight=weight)

    def _update(self, batch: int) -> None:
        with self.stopwatch.running():
            self.versions.update(batch)
        if self._is_last:
            num_valid = self._batches.num_valid(batch)
            parts = self._losses or [torch.zeros(())]
            loss = torch.stack(parts).sum() if len(parts) > 1 else parts[0]
            self._losses.clear()
            if self._on_batch is not None:
                self._on_batch(batch, loss, num_valid)

    def _next_steps(self, steps: Iterator[tuple[int, int]], micro_batch: int) -> int:
        number, ahead = next(steps)
        assert number == micro_batch, "the steps follow the order of the passes"
        return ahead

    # Transfers

    def _send_forward(self, i: int) -> None:
        self.transport.send(i, self._leaving.pop(i), forward=True)

    def _receive_forward(self, i: int) -> None:
        self._arrived[i] = self.transport.receive(i, forward=True)
        delivered = next(self._gradients_delivered)
        if delivered is not None:
            self.transport.delivered(delivered, forward=False)

    def _send_backward(self, i: int) -> None:
        self.transport.send(i, self._returning.pop(i), forward=False)

    def _receive_backward(self, i: int) -> None:
        self._returned[i] = self.transport.receive(i, forward=False)
        self.transport.delivered(i, forward=True)

    def _delivered_gradients(self) -> Iterator[int | None]:
        """With each output that arrives: the last gradient that its sender had used by then."""
        last: int | None = None
        for action in self._schedule.actions(self.number - 1):
            if action.kind is Kind.BACKWARD:
                last = action.number
            elif action.kind is Kind.FORWARD:
                yield last


def run_stage(interpreter: Interpreter, schedule: Schedule) -> None:
    """Does all actions of one stage in order: the driver of one process."""
    for action in with_transfers(schedule, interpreter.number):
        interpreter.execute(action)
    interpreter.finish()
