"""The story of a message from the facts of a history, as the sandbox and `tarry local` know it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tarry.tools.story.events import Story, StoryEvent
from tarry.tools.story.from_log import texts_of
from tarry.tools.testing.timeline import without_copies

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tarry.tools.testing.deliveries import MessageCopy, ObservedInvocation
    from tarry.tools.testing.report import Report
    from tarry.tools.testing.timeline import Timeline, Transition


def stories_of(report: Report, source: str = "the sandbox") -> Iterator[Story]:
    """Yield the story of each message of a report, in the order of sending."""
    for timeline in report.history.timelines.values():
        if timeline.transitions:
            yield story_of(timeline, source, report.began + report.seconds)


def story_of(timeline: Timeline, source: str, now: float) -> Story:
    """Return the story of a message.

    Args:
        timeline: Its timeline, with at least one transition.
        source: Where it comes from, for a reader.
        now: The time until which the history goes, in epoch seconds.
    """
    events = events_of(timeline)
    limits = {event.queue: event.max_attempts for event in events if event.max_attempts is not None}
    with_limits = (
        replace(event, max_attempts=limits.get(event.queue)) if event.attempt and event.max_attempts is None else event
        for event in events
    )  # a delivery has no limit; a line about the same queue has it
    return Story(timeline.id, tuple(with_limits), source, now)


def events_of(timeline: Timeline) -> list[StoryEvent]:
    """Return the events of a message's timeline."""
    copies = {copy.delivery_id: _CopyFacts(copy) for copy in timeline.copies}
    queues: dict[str, str] = {}
    events = []
    for step in without_copies(timeline.transitions):
        events.append(_event(step, copies.get(step.delivery_id), queues.get(step.delivery_id)))
        queues[step.delivery_id] = step.queue
    return events


class _CopyFacts:
    """The lines of tarry's log about a copy, by time and state, and its invocations."""

    def __init__(self, copy: MessageCopy) -> None:
        lines = [line for of_invocation in copy.log_lines.values() for line in of_invocation]
        logged = [(line.at, line.fields.get("fields") or line.fields) for line in lines]
        self.lines: Mapping[tuple[float, str], Mapping[str, Any]] = {
            (at, str(fields.get("state"))): fields for at, fields in reversed(logged)
        }
        self._invocations = copy.invocations
        self._begins = [invocation.invoked.at for invocation in copy.invocations]

    def invocation(self, at: float) -> ObservedInvocation | None:
        """Return the last invocation with the copy that had begun at a time."""
        place = bisect_right(self._begins, at)
        return self._invocations[place - 1] if place else None


def _event(step: Transition, copy: _CopyFacts | None, queue_before: str | None) -> StoryEvent:
    fields: Mapping[str, Any] = copy.lines.get((step.at, step.state), {}) if copy is not None else {}
    invocation = copy.invocation(step.at) if copy is not None else None
    queue = str(fields.get("queue") or queue_before or step.queue)
    sent_to = fields.get("dead_letter_queue") or fields.get("sent_to")
    return StoryEvent(
        step.at,
        step.state,
        queue=queue,
        sent_to=str(sent_to or (step.queue if step.queue != queue else "")),
        attempt=step.attempt,
        max_attempts=fields.get("max_attempts"),
        delay=step.delay,
        reason=str(fields.get("reason") or ""),
        error=str(fields.get("error") or ""),
        text=texts_of(str(fields.get("event")), fields) if fields else step.why,
        event=str(fields.get("event") or ""),
        consumer=str(fields.get("consumer") or ""),
        function=str(invocation.invoked.fields.get("function") or "") if invocation is not None else "",
        delivery_id=step.delivery_id,
        request_id=invocation.request_id if invocation is not None else "",
    )
