"""Handlers and histories of the sandbox for the tests of its checkers, and changes of histories."""

from collections.abc import Callable, Iterable
from typing import Any

from tarry import Consumer, Message, consumer
from tarry.testing import Sandbox
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.testing.checkers import check
from tarry.tools.testing.recorded_history import RecordedHistory
from tests.sandboxes import work

Change = Callable[[HistoryEvent], HistoryEvent | None]


FIFO = "orders.fifo"
TOO_SMALL: dict[str, Any] = {"dead_letters": {"maximum_message_size": 1_024}}
"""A dead-letter queue for bodies of at most 1,024 bytes."""


def failing(attempts: float = float("inf"), **settings: Any) -> Consumer[Any]:
    """Return a consumer that fails on the first ``attempts`` attempts, on all of them by default."""

    @consumer(**settings)
    def handler(message: Message) -> None:
        if message.attempt <= attempts:
            raise ValueError("as always")

    made: Consumer[Any] = handler
    return made


def rules(sandbox: Sandbox, **run: Any) -> set[str]:
    """Run the sandbox; return the rules that were broken."""
    return {violation.rule for violation in sandbox.run(check=False, **run).violations}


def events_of(sandbox: Sandbox, *given: Any, **settings: Any) -> list[HistoryEvent]:
    """Return the history of `work` with these arguments."""
    work(sandbox, *given, **settings)
    return list(sandbox.run(check=False).events)


def broken(events: Iterable[HistoryEvent], what: str = "", change: Change = lambda event: event) -> set[str]:
    """Return the rules that a history breaks once each of its events of this name is changed (None: left out)."""
    kept = [new for event in events if (new := change(event) if event.what == what else event) is not None]
    history, every = RecordedHistory(kept, settled=True), RecordedHistory(kept, settled=True)
    vars(every).update(eventful=[*every.copies.values()], eventful_deliveries=[*every.deliveries()])
    found = check(history)
    assert found == check(every)  # the messages that are left out break no rule
    return {violation.rule for violation in found}


def changed(event: HistoryEvent, **parts: Any) -> HistoryEvent:
    """Return an event with another time, name or fields."""
    return HistoryEvent(**{"at": event.at, "what": event.what, "fields": event.fields, **parts})


def leave_out(event: HistoryEvent) -> None:
    """Leave the event out."""


def having(**fields: Any) -> Callable[[HistoryEvent], HistoryEvent]:
    """Change fields of an event; a function gets the event."""

    def change(event: HistoryEvent) -> HistoryEvent:
        new = {name: value(event) if callable(value) else value for name, value in fields.items()}
        return changed(event, fields={**event.fields, **new})

    return change


def only(first: HistoryEvent, change: Callable[[HistoryEvent], HistoryEvent]) -> Callable[[HistoryEvent], HistoryEvent]:
    """Change one event of its name."""
    return lambda event: change(event) if event is first else event


def with_terms(**terms: Any) -> Callable[[HistoryEvent], HistoryEvent]:
    """Change the terms of the messages of a run that starts."""

    def changed(event: HistoryEvent) -> dict[str, Any]:
        messages = event.fields["messages"].items()
        return {each: message._replace(terms=message.terms._replace(**terms)) for each, message in messages}

    return having(messages=changed)


def first(events: Iterable[HistoryEvent], what: str) -> HistoryEvent:
    return next(event for event in events if event.what == what)
