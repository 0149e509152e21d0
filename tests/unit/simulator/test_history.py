"""The record of what happens, and who listens to it."""

from tarry.simulator.history import History, HistoryEvent


def test_a_listener_hears_each_event_as_it_is_recorded() -> None:
    history = History(lambda: 5.0)
    heard: list[HistoryEvent] = []
    history.record("sent", queue="orders")
    history.listen(heard.append)
    history.by = "mapping"
    history.record("received", queue="orders")
    assert heard == [HistoryEvent(5.0, "received", {"queue": "orders", "by": "mapping"})]
    assert [event.what for event in history.events] == ["sent", "received"]


def test_a_history_that_keeps_nothing_is_listened_to_all_the_same() -> None:
    history = History(lambda: 5.0, keep=False)
    heard: list[HistoryEvent] = []
    history.listen(heard.append)
    history.record("sent", queue="orders")
    assert ([event.what for event in heard], history.events) == (["sent"], [])
