"""The history of a run, and its listeners."""

from tarry.tools.simulator.history import History, HistoryEvent


def test_a_listener_gets_each_event_when_it_is_recorded() -> None:
    history = History(lambda: 5.0)
    received: list[HistoryEvent] = []
    history.record("sent", queue="orders")
    history.listen(received.append)
    history.by = "mapping"
    history.record("received", queue="orders")
    assert received == [HistoryEvent(5.0, "received", {"queue": "orders", "by": "mapping"})]
    assert [event.what for event in history.events] == ["sent", "received"]


def test_a_history_that_keeps_no_events_still_notifies_its_listeners() -> None:
    history = History(lambda: 5.0, keep=False)
    received: list[HistoryEvent] = []
    history.listen(received.append)
    history.record("sent", queue="orders")
    assert ([event.what for event in received], history.events) == (["sent"], [])


def test_a_listener_may_get_the_events_of_some_names_only() -> None:
    history = History(lambda: 5.0)
    received: list[HistoryEvent] = []
    history.listen(received.append, "deleted", "moved")
    for what in ("sent", "deleted", "received", "moved"):
        history.record(what)
    assert [event.what for event in received] == ["deleted", "moved"]
