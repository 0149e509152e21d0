"""What a test or a handler may not do with a sandbox, in a sentence each."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from tarry.simulator.errors import SimulationError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Misuse(SimulationError):
    """A handler did what only a test may do."""


class Endless(SimulationError):
    """So much happens in a run that it will most likely never come to rest."""


def check_handler(handler: Any) -> None:
    """Raises `TypeError` for what Lambda could not call."""
    if not callable(handler):
        raise TypeError(f"connect takes a handler, got {handler!r}: a consumer, or a function of (event, context)")
    try:
        inspect.signature(handler, follow_wrapped=False).bind(None, None)
    except TypeError as error:
        name = getattr(handler, "__name__", repr(handler))
        text = f"connect takes a handler of (event, context), and {name} is none"
        raise TypeError(f"{text}: is its @consumer missing?") from error
    except ValueError:
        return  # a function that does not tell its parameters


def listed(names: Iterable[str]) -> str:
    """Names, each once, for an error that says which there are."""
    return ", ".join(dict.fromkeys(names)) or "none"
