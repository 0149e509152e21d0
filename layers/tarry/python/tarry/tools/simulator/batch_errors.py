"""The error with which Powertools fails a whole batch, taken apart into the errors of its messages."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarry.failed.text import one_line

KIND = "BatchProcessingError"
COUNT = re.compile(r"All records failed processing\. (\d+) individual errors? ")
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
WITHOUT_TRACEBACK = re.compile(r"[\w.]*CircuitBreakerError: ")
"""The errors of the messages of a FIFO queue behind a failed one."""
FRAME = re.compile(r'  File "(.+)", line (\d+), in ')
CONCURRENT = "in _async_process_record"
"""In the tracebacks of a processor that runs messages concurrently, whose errors are in the order of their ends."""
MOST_SHOWN = 10_000
MODULES = re.compile(r"^(?:\w+\.)+(?=\w+(?:: |$))")


@dataclass(frozen=True)
class MessageErrors:
    """The errors of the messages of a batch, each one line. ``ids`` are their messages; empty if not known."""

    errors: Sequence[str]
    ids: Sequence[str] = ()

    @property
    def by_id(self) -> dict[str, str]:
        """The error of each message."""
        return dict(zip(self.ids, self.errors, strict=True)) if self.ids else {}

    @property
    def summary(self) -> str:
        """One line for the whole batch."""
        return f"{KIND}: {'; '.join(dict.fromkeys(self.errors))}"

    @property
    def heading(self) -> str:
        """The number of messages that failed."""
        count = len(self.errors)
        return f"{KIND}: {'the message' if count == 1 else f'all {count} messages'} failed"

    @property
    def text(self) -> str:
        """The heading, and a line for each message."""
        names = [f"{each:.8}  " for each in self.ids] or [""] * len(self.errors)
        lines = [f"  {name}{error}" for name, error in zip(names, self.errors, strict=True)]
        return "\n".join([self.heading, *lines])


def batch_error(error: Any, ids: Sequence[str]) -> MessageErrors | None:
    """Take apart the error of an invocation; None for any other error, or if its errors cannot be told apart.

    ``error`` is the payload with which the function failed, or a log line with its fields; ``ids`` are in the order of
    the batch.
    """
    if not isinstance(error, dict) or error.get("errorType") != KIND:
        return None
    text = str(error.get("errorMessage"))
    counted = COUNT.match(text)
    children = _children(text)
    if counted is None or len(children) != int(counted[1]):
        return None
    errors = [_line(child) for child in children]
    is_certain = len(errors) == len(ids) and (CONCURRENT not in text or len(set(errors)) == 1)
    return MessageErrors(errors, tuple(ids) if is_certain else ())


def partial_text(errors: Mapping[str, str]) -> str:
    """Return a heading and a line for each message that failed alone."""
    heading = f"{len(errors)} message{'s'[: len(errors) != 1]} failed"
    return "\n".join([heading, *(f"  {message_id:.8}  {error}" for message_id, error in errors.items())])


class SeenKeys:
    """Keys of texts that were shown, so that each is shown once; the oldest are forgotten."""

    def __init__(self) -> None:
        self._keys: dict[object, None] = {}

    def is_new(self, key: object) -> bool:
        """Return whether a key comes for the first time."""
        if key in self._keys:
            return False
        self._keys[key] = None
        if len(self._keys) > MOST_SHOWN:
            del self._keys[next(iter(self._keys))]
        return True


def new_errors(answer: Mapping[str, Any], shown: SeenKeys) -> str:
    """Return the text about the new errors of messages that failed alone; empty if an answer has none.

    ``answer`` are the fields of ``answered``.
    """
    errors = answer.get("errors", {}).items() if answer.get("kind") == "returned" else ()
    new = dict(each for each in errors if shown.is_new(each))
    return partial_text(new) if new else ""


def _children(text: str) -> list[list[str]]:
    """Return the lines of each error: of its last traceback, and of the error itself."""
    children: list[list[str]] = []
    is_chained = False
    for line in text.splitlines()[1:]:
        if line == TRACEBACK and is_chained:
            children[-1].clear()
        elif line == TRACEBACK or WITHOUT_TRACEBACK.match(line):
            children.append([])
        if children and line != TRACEBACK:
            children[-1].append(line)
        if line.strip():
            is_chained = bool(children) and line.startswith(CHAINED)
    return children


def _line(child: list[str]) -> str:
    """Return an error with the place in the code of the function at which it was raised."""
    start = next((number for number, line in enumerate(child) if line and not line.startswith(" ")), len(child))
    frames = [frame for line in child[:start] if (frame := FRAME.match(line))]
    own = [frame for frame in frames if "/site-packages/" not in frame[1]]
    place = f" [{Path(own[-1][1]).name}:{own[-1][2]}]" if own else ""
    return MODULES.sub("", one_line("\n".join(child[start:]))) + place
