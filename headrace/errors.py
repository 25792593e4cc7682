"""The errors that headrace raises, all under one root.

HeadraceError
├── InputError              something the user gave is wrong; nothing was started
│   ├── DataError           files, fields, formats, indexes of records
│   ├── ModelError          the model, its layers, its split into stages
│   ├── ScheduleError       a schedule that is incomplete, out of order or stuck
│   ├── StrategyError       a strategy that does not go with the schedule or the optimizer
│   └── RecipeError         a recipe file, its run, the command's options
└── RunError                something failed while running
    ├── ReadError           a record that could not be read
    ├── StageError          a stage raised: which stage, action and micro-batch
    ├── PeerLostError       another process is gone; the cause is that process's error
    └── LaunchError         processes that did not start, or were killed
"""

__all__ = [
    "DataError",
    "HeadraceError",
    "InputError",
    "LaunchError",
    "ModelError",
    "PeerLostError",
    "ReadError",
    "RecipeError",
    "RunError",
    "ScheduleError",
    "StageError",
    "StrategyError",
]


class HeadraceError(Exception):
    """One message that says what is wrong: got X, expected Y; where; what to do.

    Args:
        what: what is wrong, in a few words.
        got: the value at fault.
        expected: what would have been right.
        where: the file, field, layer or option.
        remedy: what the user can do about it.
    """

    def __init__(
        self,
        what: str,
        *,
        got: object = None,
        expected: object = None,
        where: object = None,
        remedy: str | None = None,
    ) -> None:
        facts = [
            f"{name} {value}"
            for name, value in (("got", got), ("expected", expected))
            if value is not None
        ]
        message = f"{what}: {', '.join(facts)}" if facts else what
        if where is not None:
            message += f"; in {where}"
        if remedy is not None:
            message += f"; {remedy}"
        super().__init__(message)


class InputError(HeadraceError, ValueError):
    """Something the user gave is wrong; nothing was started."""


class DataError(InputError):
    """Files, fields, formats or indexes of records are wrong."""


class ModelError(InputError):
    """The model cannot be cut or trained as asked."""


class ScheduleError(InputError):
    """A schedule is incomplete, out of order or stuck."""


class StrategyError(InputError):
    """A strategy does not go with the schedule or the optimizer."""


class RecipeError(InputError):
    """A recipe, its run or the command's options are wrong."""


class RunError(HeadraceError, RuntimeError):
    """Something failed while running."""


class ReadError(RunError):
    """A record could not be read."""


class StageError(RunError):
    """A stage raised; the message names stage, action and micro-batch, the cause is chained."""


class PeerLostError(RunError):
    """Another process is gone; the cause is that process's error."""


class LaunchError(RunError):
    """Processes did not start, or were killed."""
