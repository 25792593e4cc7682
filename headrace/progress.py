"""A Protocol for progress: who shows it is not our business here."""

from collections.abc import Mapping
from typing import Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """Receives what a long task has to say while it runs."""

    def say(self, text: str) -> None:
        """One line for the user, once."""

    def update(self, facts: Mapping[str, object]) -> None:
        """The newest state of the task (the same keys each time); replaces the one before."""


class Silent:
    """Says nothing."""

    def say(self, text: str) -> None:
        """Drops the line."""

    def update(self, facts: Mapping[str, object]) -> None:
        """Drops the facts."""
