"""How an invocation ended, and who invokes: the seam between the event source mapping and whoever runs functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Answer:
    """How an invocation ended.

    ``value`` is what the function returned, as JSON carries it; text that is no JSON is left a str. Of an error it is
    what Lambda answers in its place. ``text`` is the error, as Lambda says it.
    """

    kind: Literal["returned", "error", "timeout", "crash", "throttled"]
    value: Any = None
    text: str = ""
    request_id: str = ""


class FunctionHost(Protocol):
    """Whoever runs a function."""

    def invoke(self, event: dict[str, Any], done: Callable[[Answer], None]) -> None:
        """Invoke it; ``done`` is called on the timeline, later."""
