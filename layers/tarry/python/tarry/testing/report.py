"""The report of a run of the sandbox: the timeline of each message, the final states, the broken rules."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tarry.outcome import State
from tarry.testing.checkers import Violation, check
from tarry.testing.history import RecordedHistory
from tarry.tooling.text import brief, clock, duration, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tarry.simulator.history import HistoryEvent
    from tarry.testing.timeline import Timeline, Transition

BODY_CHARACTERS = 60
WHY_CHARACTERS = 160
MOST_TIMELINES = 10
MOST_VIOLATIONS = 5


class Report:
    """The history of a sandbox until now.

    ``settled`` tells whether the sandbox had come to rest; ``seconds`` is the virtual time since the sandbox was made,
    ``seed`` the sandbox's. ``print(report)`` shows it.
    """

    def __init__(self, events: Sequence[HistoryEvent], began: float, now: float, settled: bool, seed: int) -> None:
        self.events = events
        """All events: `tarry.simulator.history`."""
        self.settled = settled
        self.seconds = now - began
        self.seed = seed
        self._began = began

    def story(self, message_id: str) -> list[Transition]:
        """Return the timeline of one message, over all its copies, by its stable id or the id of one of its deliveries.

        Raises `KeyError` if no such message was sent.
        """
        return list(self._timeline(message_id).transitions)

    def state(self, message_id: str) -> State:
        """Return the current state of a message. Raises `KeyError` if no such message was sent."""
        return self._timeline(message_id).state

    @cached_property
    def timelines(self) -> Mapping[str, list[Transition]]:
        """The timeline of each message, by its stable id, in the order of sending."""
        return {stable_id: list(each.transitions) for stable_id, each in self.history.timelines.items()}

    def count(self, state: State | str) -> int:
        """Return the number of messages in a state."""
        return sum(each.state == state for each in self.history.timelines.values())

    @cached_property
    def history(self) -> RecordedHistory:
        """The facts of the history, by copy, delivery, invocation and run, as checkers read them."""
        return RecordedHistory(self.events, settled=self.settled)

    @cached_property
    def violations(self) -> list[Violation]:
        """The broken rules: `tarry.testing.checkers`."""
        return check(self.history)

    def check(self) -> None:
        """Raise `AssertionError`, with the timelines of the messages, if a rule was broken.

        A message was lost, duplicated without a cause, came too early, or the like.
        """
        if not self.violations:
            return
        by_message: dict[str, list[Violation]] = {}
        for violation in self.violations[:MOST_VIOLATIONS]:
            by_message.setdefault(violation.id, []).append(violation)
        parts = ["\n".join([*map(str, found), *self._drawn(of)]) for of, found in by_message.items()]
        more = len(self.violations) - MOST_VIOLATIONS
        rules = f"{len(self.violations)} violation{'s'[: len(self.violations) != 1]}, seed {self.seed}"
        raise AssertionError("\n\n".join([rules, *parts, *([f"and {more} more"] if more > 0 else [])]))

    def timeline(self, message_id: str) -> str:
        """Return one message's timeline as text: a line for each step, with the time since the sandbox was made.

        Raises `KeyError` if no such message was sent.
        """
        return draw(self._timeline(message_id), self._began)

    def __str__(self) -> str:
        """The numbers of messages by state, and the timelines of the first ten; uncommitted messages come first."""
        timelines = sorted(self.history.timelines.values(), key=lambda each: each.state is State.COMMITTED)
        shown = [draw(each, self._began) for each in timelines[:MOST_TIMELINES]]
        more = len(timelines) - len(shown)
        left = [f"and {more} more: report.timeline(message_id)"] if more else []
        return "\n\n".join([self._summary(), *shown, *left])

    def __repr__(self) -> str:
        return f"<Report: {self._summary()}>"

    def _summary(self) -> str:
        counts = {state: self.count(state) for state in State}
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no messages"
        unsettled = "" if self.settled else ", more is to happen"
        return f"{states}, after {duration(self.seconds)}, seed {self.seed}{unsettled}"

    def _timeline(self, message_id: str) -> Timeline:
        timeline = self.history.find(message_id)
        if timeline is None:
            raise KeyError(f"no message {message_id!r} was sent")
        return timeline

    def _drawn(self, of: str) -> list[str]:
        """The timeline, if the id is that of a message: a rule about an invocation is not about one message."""
        timeline = self.history.find(of)
        return [] if timeline is None else [draw(timeline, self._began)]


# a message's timeline, as text to read


def draw(timeline: Timeline, began: float) -> str:
    """Return a line for each step, with the time since ``began``; faults are shown between them.

    message 1f6c... {"id":7}
      0:00:00.0  READY          in orders
      0:00:00.3  IN_FLIGHT      attempt 1
      0:00:00.3  WAITING_RETRY  for 10 min: GatewayDown: no answer
    """
    steps = timeline.transitions
    lines = [(step.at, _line(step, before)) for before, step in zip([None, *steps[:-1]], steps, strict=True)]
    lines += [(at, f"{'':<14} ! {what}") for at, what in timeline.faults]
    lines.sort(key=lambda line: line[0])
    text = "\n".join(f"  {clock(at - began):>9}  {text}".rstrip() for at, text in lines)
    return f"message {timeline.id} {shortened(timeline.body, BODY_CHARACTERS)}\n{text}"


def _line(step: Transition, before: Transition | None) -> str:
    parts = []
    if before is None or before.queue != step.queue:
        parts.append(f"in {step.queue}")
    if step.state is State.IN_FLIGHT and step.attempt is not None:
        parts.append(f"attempt {step.attempt}")
    if step.delay is not None and not (step.is_gone and not step.sent_on):
        parts.append(_delay(step))
    if step.sent_on:
        parts.append("as a copy")
    text, why = ", ".join(parts), shortened(brief(step.why), WHY_CHARACTERS)
    between = ", " if step.is_gone else ": "
    return f"{step.state:<14} {text}{between if text and why else ''}{why}"


def _delay(step: Transition) -> str:
    if not step.delay:
        return "at once"
    return f"{'in' if step.state is State.READY else 'for'} {duration(step.delay)}"
