"""The story of a message from the facts of a history, as the sandbox and `tarry local` know it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tarry.story.events import Story, StoryEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tarry.simulator.history import HistoryEvent
    from tarry.testing.deliveries import MessageCopy, ObservedInvocation
    from tarry.testing.report import Report
    from tarry.testing.timeline import Timeline, Transition


def story_of(timeline: Timeline, source: str, now: float) -> Story:
    """Return the story of a message.

    Args:
        timeline: Its timeline, with at least one transition.
        source: Where it comes from, for a reader.
        now: The time until which the history goes, in epoch seconds.
    """
    copies = {copy.delivery_id: copy for copy in timeline.copies}
    queues: dict[str, str] = {}
    events = []
    for step in timeline.transitions:
        copy = copies.get(step.delivery_id)
        events.append(_event(step, copy, queues))
        queues[step.delivery_id] = step.queue
    return Story(timeline.id, tuple(events), source, now)


def stories_of(report: Report, source: str = "the sandbox") -> Iterator[Story]:
    """Yield the story of each message of a report, in the order of sending."""
    for timeline in report.history.timelines.values():
        if timeline.transitions:
            yield story_of(timeline, source, report.began + report.seconds)


def _event(step: Transition, copy: MessageCopy | None, queues: Mapping[str, str]) -> StoryEvent:
    invocation = _invocation(step, copy)
    line = _line(step, copy)
    fields = _fields(line) if line is not None else {}
    unclear = [str(fields[name]) for name in ("text", "not_sent", "not_settled", "said") if fields.get(name)]
    queue = str(fields.get("queue") or queues.get(step.delivery_id) or step.queue)
    return StoryEvent(
        step.at,
        step.state,
        queue=queue,
        sent_to=str(
            fields.get("dead_letter_queue") or fields.get("sent_to") or (step.queue if step.queue != queue else "")
        ),
        attempt=step.attempt,
        max_attempts=fields.get("max_attempts"),
        delay=step.delay,
        reason=str(fields.get("reason") or ""),
        error=str(fields.get("error") or ""),
        text="; ".join(unclear) if line is not None else step.why,
        name=str(fields.get("event") or ""),
        consumer=str(fields.get("consumer") or ""),
        function=str(invocation.invoked.fields.get("function") or "") if invocation is not None else "",
        delivery_id=step.delivery_id,
        request_id=invocation.request_id if invocation is not None else "",
    )


def _invocation(step: Transition, copy: MessageCopy | None) -> ObservedInvocation | None:
    """Return the invocation that a step belongs to: the last that had begun with its copy."""
    invocations = copy.invocations if copy is not None else []
    return next((each for each in reversed(invocations) if each.invoked.at <= step.at), None)


def _line(step: Transition, copy: MessageCopy | None) -> HistoryEvent | None:
    """Return the line of tarry's log that tells a step."""
    if copy is None:
        return None
    lines = (line for of_invocation in copy.log_lines.values() for line in of_invocation)
    return next((line for line in lines if line.at == step.at and _fields(line).get("state") == step.state), None)


def _fields(line: HistoryEvent) -> Mapping[str, Any]:
    """Return the fields of a line: recorded by the sandbox, or read from the output of a process."""
    found: Mapping[str, Any] = line.fields.get("fields") or line.fields
    return found
