"""Drives every stage in one process, with the same interpreter."""

from collections.abc import Sequence

from headrace.pipeline.actions import timeline
from headrace.pipeline.runtime import Interpreter
from headrace.pipeline.schedule import Schedule, with_transfers

__all__ = ["run_all_stages"]


def run_all_stages(interpreters: Sequence[Interpreter], schedule: Schedule) -> None:
    """Does the actions of all stages, in the order in which they would start on unit times."""
    stages = [with_transfers(schedule, interpreter.number) for interpreter in interpreters]
    for timed in timeline(stages):
        interpreters[timed.action.stage].execute(timed.action)
    for interpreter in interpreters:
        interpreter.finish()
