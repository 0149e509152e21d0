"""Mistakes in a test, each explained in a sentence: a handler that cannot be called, a run that would never end."""

import inspect
from collections.abc import Iterable
from typing import Any

from tarry.tools.simulator.actors import SimulationError


class Misuse(SimulationError):
    """A handler called a method of the sandbox that only a test may call."""


class Endless(SimulationError):
    """A run has so many events that it probably never ends."""


def check_handler(handler: Any, by: str = "connect") -> None:
    """Raise `TypeError` for a handler that Lambda could not call; ``by`` is the function that takes it."""
    if not callable(handler):
        raise TypeError(f"{by} takes a handler, got {handler!r}: a consumer, or a function of (event, context)")
    try:
        inspect.signature(handler, follow_wrapped=False).bind(None, None)
    except TypeError as error:
        name = getattr(handler, "__name__", repr(handler))
        text = f"{by} takes a handler of (event, context), and {name} is not one"
        raise TypeError(f"{text}: is its @consumer missing?") from error
    except ValueError:
        return  # a function without a readable signature


def listed(names: Iterable[str]) -> str:
    """Return the names, each once, for an error that lists them."""
    return ", ".join(dict.fromkeys(names)) or "none"
