"""The report of a run of the sandbox: timelines and stories of messages, the final states, the broken rules."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from tarry.failed.text import brief, clock, duration, shortened
from tarry.message.outcomes import State
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.story.events import ENDS, Story, StoryEvent
from tarry.tools.testing.checkers import Violation, check
from tarry.tools.testing.recorded_history import RecordedHistory
from tarry.tools.testing.timeline import Timeline, Transition, without_copies


def stories_of(report: "Report", source: str = "the sandbox") -> Iterator[Story]:
    """Yield the story of each message of a report, in the order of sending."""
    for timeline in report.history.timelines.values():
        if timeline.transitions:
            yield story_of(timeline, source, report.began + report.seconds)


def story_of(timeline: Timeline, source: str, now: float) -> Story:
    """Return the story of a message, whose timeline has a transition, until ``now``, in epoch seconds."""
    events = [*without_copies(timeline.transitions)]
    limits = {event.origin: event.max_attempts for event in events if event.max_attempts is not None}
    with_limits = (
        replace(event, max_attempts=limits.get(event.origin)) if event.attempt and event.max_attempts is None else event
        for event in events
    )  # a delivery has no limit; a line about the same queue has it
    return Story(timeline.id, tuple(with_limits), source, now)


BODY_CHARACTERS = 60
WHY_CHARACTERS = 160
MOST_TIMELINES = 10
MOST_LINES = 10
MOST_TIMELINES_OF_A_VIOLATION = 3
LINES_UNTIL_A_VIOLATION = 12
MOST_LINES_OF_A_TIMELINE = 40


NOT_KEPT = "the sandbox keeps no history (keep_history=False)"


class Report:
    """The history of a sandbox until now.

    ``settled`` tells whether the sandbox had come to rest; ``seconds`` is the virtual time since the sandbox was made,
    ``seed`` the sandbox's. ``print(report)`` shows it.
    """

    def __init__(
        self, events: Sequence[HistoryEvent] | None, began: float, now: float, settled: bool, seed: int
    ) -> None:
        self._events = events
        self.settled = settled
        self.seconds = now - began
        self.seed = seed
        self.began = began
        """When the sandbox was made, in epoch seconds."""

    def story(self, message_id: str) -> list[Transition]:
        """Return the timeline of one message, over all its copies.

        ``message_id``: its stable id, the id of one of its deliveries, or the beginning of one.

        Raises `KeyError` if no such message was sent, or if several ids begin with it.
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

    @property
    def events(self) -> Sequence[HistoryEvent]:
        """All events: `tarry.tools.simulator.history`. Raises `ValueError` if the sandbox keeps no history."""
        if self._events is None:
            raise ValueError(f"{NOT_KEPT}: there is no report of its messages")
        return self._events

    @cached_property
    def history(self) -> RecordedHistory:
        """The facts of the history, by copy, delivery, invocation and run, as checkers read them."""
        return RecordedHistory(self.events, settled=self.settled)

    @cached_property
    def violations(self) -> list[Violation]:
        """The broken rules: `tarry.tools.testing.checkers`."""
        return check(self.history)

    def check(self) -> None:
        """Raise `RuleBroken`, an `AssertionError`, if a rule was broken, with the timelines until then.

        A message was lost, duplicated without a cause, came too early, or the like.
        """
        __tracebackhide__ = True
        if self.violations:
            raise RuleBroken(self)

    def explain(self, violations: Iterable[Violation]) -> str:
        """Return violations as text: of each rule, the one with the shortest history, with its timelines until then."""
        by_rule: dict[str, list[Violation]] = {}
        for violation in violations:
            by_rule.setdefault(violation.rule, []).append(violation)
        parts, shown = [], set[str]()
        for found in by_rule.values():
            shortest = min(found, key=self._length_until)
            timelines = [each for each in self.concerned(shortest) if each.id not in shown]
            shown.update(each.id for each in timelines)
            drawn = [draw(each, self.began, shortest.at, LINES_UNTIL_A_VIOLATION) for each in timelines]
            if count := len(found) - 1:
                drawn.append(f"and {count} more violation{'s'[: count != 1]} of it: sandbox.report().violations")
            parts.append("\n".join([self._sentence(shortest), *drawn]))
        return "\n\n".join(parts)

    def sent(self) -> list[str]:
        """Return a line for each of the first messages."""
        return _first(
            (
                f"{clock(each.transitions[0].at - self.began)}  {shortened(each.body, BODY_CHARACTERS)}"
                f" sent to {each.transitions[0].queue}"
                for each in self.history.timelines.values()
                if each.transitions
            ),
            "messages",
        )

    def faults(self) -> list[str]:
        """Return a line for each of the first faults that occurred, with the time since the sandbox was made."""
        return _first((f"{clock(each.at - self.began)}  ! {_fault(each)}" for each in self.history.faults), "faults")

    def svg(self, path: str | Path) -> None:
        """Write a picture of the timelines, for a browser: a row for each message, of at most 100 messages.

        Messages that broke a rule and messages that are not committed come before others; the picture tells how many it
        leaves out. It follows the light or dark mode of its viewer. Hold the pointer over a mark to read its details.
        """
        from tarry.tools.testing.drawing import draw

        Path(path).write_text(draw(self), "utf-8")

    def timeline(self, message_id: str) -> str:
        """Return one message's timeline as text: a line for each step, with the time since the sandbox was made.

        Raises `KeyError` if no such message was sent.
        """
        return draw(self._timeline(message_id), self.began)

    def __str__(self) -> str:
        """The numbers of messages by state, and the timelines of the first ten; uncommitted messages come first."""
        timelines = sorted(self.history.timelines.values(), key=lambda each: each.state is State.COMMITTED)
        shown = [draw(each, self.began, most=MOST_LINES_OF_A_TIMELINE) for each in timelines[:MOST_TIMELINES]]
        more = len(timelines) - len(shown)
        left = [f"and {more} more: report.timeline(message_id)"] if more else []
        return "\n\n".join([self.summary, *shown, *left])

    def __repr__(self) -> str:
        return f"<Report: {self.summary}>"

    @property
    def summary(self) -> str:
        """The numbers of messages by state, the virtual time and the seed, on one line."""
        counts = {state: self.count(state) for state in State}
        states = ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "no messages"
        unsettled = "" if self.settled else ", more is to happen"
        return f"{states}, after {duration(self.seconds)}, seed {self.seed}{unsettled}"

    def _timeline(self, message_id: str) -> Timeline:
        if (timeline := self.history.find(message_id)) is not None:
            return timeline
        known = [each for ids in (self.history.timelines, self.history.copies) for each in ids]
        begun = (self.history.find(each) for each in known if message_id and each.startswith(message_id))
        found = {each.id: each for each in begun if each is not None}
        if len(found) == 1:
            return found.popitem()[1]
        several = f"{len(found)} messages have an id that begins with {message_id!r}: name one in full"
        raise KeyError(several if found else f"no message {message_id!r} was sent")

    def concerned(self, violation: Violation) -> list[Timeline]:
        """Return the timelines of the messages that a violation names, or those of the batch of its invocation."""
        ids = [violation.id, *(word.strip(",;:'\"") for word in violation.text.split())]
        if (invocation := self.history.invocations.get(violation.id)) is not None:
            ids += invocation.batch
        found = [timeline for each in ids if (timeline := self.history.find(each)) is not None]
        return list({each.id: each for each in found}.values())[:MOST_TIMELINES_OF_A_VIOLATION]

    def _sentence(self, violation: Violation) -> str:
        """The violation as text; some rules are about an invocation, not about a message."""
        text = str(violation)
        if violation.id not in self.history.invocations:
            return text
        return text.replace(f"(message {violation.id})", f"(invocation {violation.id})")

    def _length_until(self, violation: Violation) -> int:
        """The number of steps and faults of its messages until a rule was broken."""
        times = [step.at for each in self.concerned(violation) for step in each.transitions]
        times += [at for each in self.concerned(violation) for at, _ in each.faults]
        return sum(at <= violation.at for at in times)


class RuleBroken(AssertionError):
    """A run broke rules: its report and its violations, and as text the shortest history that shows each of them."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.violations = report.violations
        count = len(self.violations)
        super().__init__(
            f"{count} violation{'s'[: count != 1]}, seed {report.seed}\n\n{report.explain(self.violations)}"
        )


# a message's timeline, as text to read


def draw(timeline: Timeline, began: float, until: float = math.inf, most: int | None = None) -> str:
    """Return a line for each step, with the time since ``began``; faults are shown between them.

    message 1f6c... {"id":7}
      0:00:00.0  READY          in orders
      0:00:00.3  IN_FLIGHT      attempt 1
      0:00:00.3  WAITING_RETRY  for 10 min: GatewayDown: no answer

    With ``most``, only the first two lines and about as many before ``until``.
    """
    events = [*without_copies(timeline.transitions)]
    lines = [(event.at, _line(event, before)) for before, event in zip([None, *events[:-1]], events, strict=True)]
    lines += [(at, f"{'':<14} ! {what}") for at, what in timeline.faults]
    lines.sort(key=lambda line: line[0])
    texts = [f"  {clock(at - began):>9}  {text}".rstrip() for at, text in lines]
    if most is not None:
        texts = _cut(texts, sum(at <= until for at, _ in lines), most)
    return "\n".join([f"message {timeline.id} {shortened(timeline.latest_body, BODY_CHARACTERS)}", *texts])


def _first(lines: Iterable[str], what: str) -> list[str]:
    found = [*lines]
    more = [f"and {len(found) - MOST_LINES} more {what}"] if len(found) > MOST_LINES else []
    return [f"  {line}" for line in (*found[:MOST_LINES], *more)]


def _cut(texts: list[str], place: int, most: int) -> list[str]:
    """Return the first two lines, and up to ``most`` until the one after a place."""
    end = place + 1 if place + 2 < len(texts) else len(texts)
    begin = end - most if end > most + 3 else 0
    before = [*texts[:2], f"  ... {begin - 2:,} lines left out: report.timeline(message_id)"] if begin else []
    after = [f"  and {len(texts) - end:,} later lines: report.timeline(message_id)"] if end < len(texts) else []
    return [*before, *texts[begin:end], *after]


def _line(event: StoryEvent, before: StoryEvent | None) -> str:
    text, why = event.words(before), shortened(brief(event.explanation), WHY_CHARACTERS)
    between = ", " if event.sent_to or event.state in ENDS else ": "
    return f"{event.state:<14} {text}{between if text and why else ''}{why}"


def _fault(event: HistoryEvent) -> str:
    of, on = event.fields.get("operation"), event.fields.get("queue")
    kind = str(event.fields["kind"])
    return kind + (f" of {of}" if of else "") + (f" on {on}" if on else "")
