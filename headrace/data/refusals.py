"""What the system refuses becomes an error that names the file."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.errors import DataError

__all__ = ["reading"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def reading(
    path: object,
    function: Callable[_Arguments, _Result],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> _Result:
    """Calls what looks into a file.

    Raises:
        DataError: the system refuses; names the path.
    """
    try:
        return function(*args, **kwargs)
    except OSError as error:
        raise DataError("a file cannot be read", got=error.strerror, where=path) from error
