"""What a run of the sandbox tells: the story of each message, how many ended where, which rules were broken."""

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
    """What has happened in a sandbox until now.

    ``settled`` says whether nothing was left to happen; ``seconds`` is the virtual time since the sandbox was made,
    ``seed`` the sandbox's. ``print(report)`` shows it.
    """

    def __init__(self, events: Sequence[HistoryEvent], began: float, now: float, settled: bool, seed: int) -> None:
        self.events = events
        """All that happened: `tarry.simulator.history`."""
        self.settled = settled
        self.seconds = now - began
        self.seed = seed
        self._began = began

    def story(self, message_id: str) -> list[Transition]:
        """The life of one message, by its stable id or that of one of its deliveries, over all its copies.

        Raises `KeyError` if no such message was sent.
        """
        return list(self._timeline(message_id).transitions)

    def state(self, message_id: str) -> State:
        """The state in which a message is now. Raises `KeyError` if no such message was sent."""
        return self._timeline(message_id).state

    @cached_property
    def stories(self) -> Mapping[str, list[Transition]]:
        """The life of each message, by its stable id, in the order of their sending."""
        return {stable_id: list(each.transitions) for stable_id, each in self.history.timelines.items()}

    def count(self, state: State | str) -> int:
        """How many messages are in a state now."""
        return sum(each.state == state for each in self.history.timelines.values())

    @cached_property
    def history(self) -> RecordedHistory:
        """All that happened, by message, delivery, invocation and run, as checkers read it."""
        return RecordedHistory(self.events, settled=self.settled)

    @cached_property
    def violations(self) -> list[Violation]:
        """What must never happen, and did: `tarry.testing.checkers`."""
        return check(self.history)

    def check(self) -> None:
        """Raises `AssertionError`, with their timelines, if a message was lost, doubled without a cause, came too early
        or in any other way as it must not.
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
        """One message's timeline: a line for each step, with the time since the sandbox was made.

        Raises `KeyError` if no such message was sent.
        """
        return draw(self._timeline(message_id), self._began)

    def __str__(self) -> str:
        """How many messages are where, and the timelines of the first ten: of those that are not committed first."""
        timelines = sorted(self.history.timelines.values(), key=lambda each: each.state is State.COMMITTED)
        shown = [draw(each, self._began) for each in timelines[:MOST_TIMELINES]]
        more = len(timelines) - len(shown)
        left = [f"and {more} more: report.timeline(message_id)"] if more else []
        return "\n\n".join([self._summary(), *shown, *left])

    def __repr__(self) -> str:
        return f"<Report: {self._summary()}>"

    def _summary(self) -> str:
        counts = {state: self.count(state) for state in State}
        told = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no messages"
        unsettled = "" if self.settled else ", more is to happen"
        return f"{told}, after {duration(self.seconds)}, seed {self.seed}{unsettled}"

    def _timeline(self, message_id: str) -> Timeline:
        timeline = self.history.find(message_id)
        if timeline is None:
            raise KeyError(f"no message {message_id!r} was sent")
        return timeline

    def _drawn(self, of: str) -> list[str]:
        """The timeline, if it is a message that the id is of: a rule about an invocation is about no message alone."""
        timeline = self.history.find(of)
        return [] if timeline is None else [draw(timeline, self._began)]


# a message's timeline, as text to read


def draw(timeline: Timeline, began: float) -> str:
    """A line for each step, with the time since ``began``; between them what went wrong by fault.

    message 1f6c... {"id":7}
      0:00:00.0  READY          in orders
      0:00:00.3  IN_FLIGHT      attempt 1
      0:00:00.3  WAITING_RETRY  for 10 min: GatewayDown: no answer
    """
    steps = timeline.transitions
    lines = [(step.at, _line(step, before)) for before, step in zip([None, *steps[:-1]], steps, strict=True)]
    lines += [(at, f"{'':<14} ! {what}") for at, what in timeline.faults]
    lines.sort(key=lambda line: line[0])
    told = "\n".join(f"  {clock(at - began):>9}  {text}".rstrip() for at, text in lines)
    return f"message {timeline.id} {shortened(timeline.body, BODY_CHARACTERS)}\n{told}"


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
    text, why = ", ".join(said), shortened(brief(step.why), WHY_CHARACTERS)
    between = ", " if step.is_gone else ": "
    return f"{step.state:<14} {text}{between if text and why else ''}{why}"


def _delay(step: Transition) -> str:
    if not step.delay:
        return "at once"
    return f"{'in' if step.state is State.READY else 'for'} {duration(step.delay)}"
