"""A message's story, as text to read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tarry.outcome import State
from tarry.simulator.printable import printable

if TYPE_CHECKING:
    from tarry.testing.story import Story, Transition

_OF_UNDECODABLE = re.compile(r"undecodable: Undecodable: the body of message \S+")
BODY_CHARACTERS = 60
WHY_CHARACTERS = 160
_MODULES = re.compile(r"(?<![\w.])(?:\w+\.)+(?=[A-Z]\w*(?:: |$))")
"""The modules before the name of an error: the record has them, a line has no room for them."""


def draw(story: Story, began: float) -> str:
    """A line for each step, with the time since ``began``; between them what went wrong by fault.

    message 1f6c... {"id":7}
      0:00:00.0  READY          in orders
      0:00:00.3  IN_FLIGHT      attempt 1
      0:00:00.3  WAITING_RETRY  for 10 min: GatewayDown: no answer
    """
    steps = story.transitions
    lines = [(step.at, _line(step, before)) for before, step in zip([None, *steps[:-1]], steps, strict=True)]
    lines += [(at, f"{'':<14} ! {what}") for at, what in story.faults]
    lines.sort(key=lambda line: line[0])
    told = "\n".join(f"  {clock(at - began):>9}  {text}".rstrip() for at, text in lines)
    return f"message {story.id} {_short(story.body, BODY_CHARACTERS)}\n{told}"


def _line(step: Transition, before: Transition | None) -> str:
    said = []
    if before is None or before.queue != step.queue:
        said.append(f"in {step.queue}")
    if step.state is State.IN_FLIGHT and step.attempt is not None:
        said.append(f"attempt {step.attempt}")
    if step.delay is not None and not (step.is_gone and not step.sent_on):
        said.append(_delay(step))
    if step.sent_on:
        said.append("as a copy")
    text, why = ", ".join(said), _short(brief(step.why), WHY_CHARACTERS)
    between = ", " if step.is_gone else ": "
    return f"{step.state:<14} {text}{between if text and why else ''}{why}"


def _delay(step: Transition) -> str:
    if not step.delay:
        return "at once"
    return f"{'in' if step.state is State.READY else 'for'} {duration(step.delay)}"


def brief(text: str) -> str:
    """Why, without the modules of errors, without what of tarry's own errors the reason and the message's line say."""
    text = _MODULES.sub("", text).replace("rejected: Reject: ", "rejected: ")
    return _OF_UNDECODABLE.sub("undecodable: the body", text)


def clock(seconds: float) -> str:
    """As ``h:mm:ss.s``."""
    tenths = round(seconds * 10)
    return f"{tenths // 36000}:{tenths // 600 % 60:02}:{tenths // 10 % 60:02}.{tenths % 10}"


def duration(seconds: float) -> str:
    """In words: ``90`` is ``1 min 30 s``."""
    whole = round(seconds)
    if whole < 1:
        return f"{seconds:.1g} s"
    parts = (whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")
    return " ".join(f"{number} {unit}" for number, unit in parts if number)


def _short(text: str, most: int) -> str:
    """At most so many characters, control characters escaped."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."
