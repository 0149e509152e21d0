"""The board: the states of messages, from what a cloud's history tells; what is settled, what waits, what is lost."""

import json
from typing import Any

import pytest

from tarry.envelope.attribute import ATTRIBUTE, body_sum
from tarry.local.show.board import MOST_RECENT, MOST_SETTLED, MOST_STEPS, Board
from tarry.local.show.timeline import LOST, MessageTimeline, state_counts
from tarry.simulator.history import HistoryEvent
from tarry.testing.timeline import because

NOW = 1_000.0


class Past:
    """A board, and what happens to one message."""

    def __init__(self, *, forgetful: bool = False) -> None:
        self.stepped: list[str] = []
        self.board = Board({"orders", "slow"}, lambda story: self.stepped.append(str(story)), forgetful=forgetful)
        self.now = NOW

    def happens(self, what: str, **fields: Any) -> None:
        self.board.take(HistoryEvent(self.now, what, fields))

    def sent(self, id: str = "m", queue: str = "orders", **fields: Any) -> None:
        self.happens("sent", queue=queue, delivery_id=id, **{"body": "{}", "attributes": {}, **fields})

    def received(self, id: str = "m", count: int = 1, queue: str = "orders", **fields: Any) -> None:
        told = {"receive_count": count, "visible_until": self.now + 30, "group": None}
        self.happens("received", queue=queue, delivery_id=id, **{**told, **fields})

    def invoked(self, *ids: str) -> None:
        self.happens("invoked", function="f", request_id="r", delivery_ids=list(ids or ["m"]), cold=False)

    def delivered(self, id: str = "m", count: int = 1, queue: str = "orders") -> None:
        self.received(id, count, queue)
        self.invoked(id)

    def said(self, state: str, id: str = "m", **fields: Any) -> None:
        """A line of tarry's log."""
        fields = {"state": state, "delivery_id": id, **fields}
        self.happens("logged", function="f", request_id="r", line="", fields=fields)

    def answered(self, *failed: str, why: str = "") -> None:
        self.happens("answered", request_id="r", failed=list(failed), why=why)

    def deleted(self, id: str = "m", by: str = "mapping") -> None:
        self.happens("deleted", delivery_id=id, queue="orders", by=by)

    @property
    def story(self) -> MessageTimeline:
        found = self.board.find("m")
        assert found is not None
        return found


@pytest.fixture
def past() -> Past:
    past = Past()
    past.sent()
    past.delivered()
    return past


def test_a_message_that_is_deleted_without_a_word_is_committed(past: Past) -> None:
    past.answered()
    past.deleted()
    assert str(past.story) == "READY -> IN_FLIGHT 1 -> COMMITTED"
    assert past.board.is_settled
    assert past.board.ended == {"COMMITTED": 1}


def test_a_message_that_goes_back_without_a_word_waits_for_its_visibility(past: Past) -> None:
    past.answered("m")
    assert str(past.story) == "READY -> IN_FLIGHT 1 -> WAITING_RETRY 30 s"
    assert past.story.due == NOW + 30
    assert not past.board.is_settled


def test_a_visibility_that_a_handler_changed_without_a_word_is_known(past: Past) -> None:
    past.happens("visibility_changed", delivery_id="m", queue="orders", visible_until=NOW + 600)
    past.answered("m")
    assert past.story.due == NOW + 600


def test_what_tarry_says_of_a_message_stands(past: Past) -> None:
    past.said("WAITING_RETRY", delay=60, attempt=1, error="ValueError: no", reason="error")
    past.answered("m")
    past.delivered(count=2)
    past.deleted(by="http")
    past.said("DEAD_LETTERED", attempt=2, reason="exhausted", dead_letter_queue="dead")
    past.answered()
    assert str(past.story) == "READY -> IN_FLIGHT 1 -> WAITING_RETRY 1 min -> IN_FLIGHT 2 -> DEAD_LETTERED"
    assert state_counts(past.board.messages) == {"DEAD_LETTERED": 1}


def test_a_line_of_the_log_that_comes_after_the_answer_is_as_good(past: Past) -> None:
    past.answered("m")
    past.said("WAITING_RETRY", delay=60, attempt=1)
    assert str(past.story) == "READY -> IN_FLIGHT 1 -> WAITING_RETRY 1 min"
    past.delivered(count=2)
    past.deleted(by="http")
    past.answered()
    past.said("DEAD_LETTERED", attempt=2)
    assert past.board.ended == {"COMMITTED": 0, "DEAD_LETTERED": 1}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"reason": "error", "error": "ValueError: no"}, "ValueError: no"),
        ({"reason": "error"}, "the handler asked for it"),
        ({"state": "DEAD_LETTERED", "reason": "exhausted", "error": "ValueError: no"}, "exhausted: ValueError: no"),
        ({"state": "DEAD_LETTERED", "reason": "exhausted"}, "exhausted"),
        ({"reason": "exhausted", "not_sent": "AccessDenied"}, "AccessDenied"),
        ({}, ""),
    ],
)
def test_what_tarry_says_of_a_message_tells_why_it_is_there(said: dict[str, str], why: str) -> None:
    assert because({"state": "WAITING_RETRY", **said}) == why


def test_a_retry_that_was_not_reported_is_a_loss(past: Past) -> None:
    past.said("WAITING_RETRY", delay=60)
    past.answered()
    past.deleted()
    assert past.story.state == LOST
    assert past.story.why == "it was deleted, though it was WAITING_RETRY"
    assert str(past.story) == "READY -> IN_FLIGHT 1 -> WAITING_RETRY 1 min -> LOST"


def test_what_somebody_else_deletes_is_no_loss(past: Past) -> None:
    past.answered("m")
    past.deleted(by="http")
    assert past.story.state == "COMMITTED"
    assert past.story.why == "deleted by something other than its function"


def test_a_copy_goes_on_with_the_story_of_its_original(past: Past) -> None:
    record = {"v": 1, "sum": body_sum("{}"), "id": "m", "carried": 1}
    attributes = {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(record)}}
    past.sent("copy", "slow", attributes=attributes, by="http")
    past.deleted(by="http")
    past.said("RESENT", sent_to="slow")
    past.answered()
    assert not past.board.is_settled
    past.delivered("copy", queue="slow")
    past.said("DISCARDED", "copy")
    past.answered()
    past.deleted("copy")
    assert str(past.story) == "READY -> IN_FLIGHT 1 -> READY -> RESENT -> IN_FLIGHT 2 -> DISCARDED"
    assert past.board.is_settled


def test_on_fifo_a_message_behind_another_of_its_group_has_not_run_before() -> None:
    past = Past()
    for id in ("a", "b"):
        past.sent(id, "orders.fifo")
        past.received(id, 3, "orders.fifo", group="g")
    past.invoked("a", "b")
    assert [story.attempt for story in past.board.messages] == [3, 1]


def test_of_an_sqs_that_tells_nothing_a_story_begins_when_its_message_is_received() -> None:
    past = Past()
    past.received(body="{}", attributes={}, by="mapping")
    past.invoked()
    past.answered()
    past.deleted()
    assert str(past.story) == "READY -> IN_FLIGHT 1 -> COMMITTED"


def test_waiting_is_hopeless_where_all_wait_too_long(past: Past) -> None:
    assert not past.board.is_hopeless(until=NOW + 50)
    past.said("WAITING_RETRY", delay=60)
    past.answered("m")
    assert past.board.is_hopeless(until=NOW + 50)
    assert not past.board.is_hopeless(until=NOW + 70)


def test_a_message_in_a_queue_that_nobody_consumes_has_settled_there() -> None:
    past = Past()
    past.sent(queue="letters")
    assert past.board.is_settled


def test_a_redriven_message_ends_a_second_time(past: Past) -> None:
    past.said("DEAD_LETTERED", dead_letter_queue="dead")
    past.answered()
    past.happens("moved", delivery_id="m", queue="dead", to="orders", new_delivery_id="n", origin="redrive")
    past.sent("n")
    past.delivered("n")
    past.answered()
    past.deleted("n")
    assert past.board.ended == {"DEAD_LETTERED": 1, "COMMITTED": 1}


def test_a_message_of_the_event_file_has_its_number_and_begins_with_its_first_delivery() -> None:
    past = Past()
    past.board.number = 7
    past.sent()
    past.board.number = None
    past.delivered()
    assert (past.story.number, str(past.story)) == (7, "IN_FLIGHT 1")
    assert past.stepped == ["IN_FLIGHT 1"]


def test_what_is_shown_first_went_on_last_and_trouble_keeps_its_place() -> None:
    past = Past()
    for number in range(20):
        past.now = NOW + number
        past.sent(f"{number}")
        past.delivered(f"{number}")
        past.answered(*(["3"] if number == 3 else []))
        past.deleted(f"{number}") if number != 3 else None
    assert [story.id for story in past.board.latest(4)] == ["19", "18", "17", "3"]


def test_a_board_that_is_made_for_days_does_not_grow() -> None:
    past = Past(forgetful=True)
    for number in range(3 * MOST_SETTLED):
        past.sent(f"{number}")
        past.delivered(f"{number}")
        past.answered()
        past.deleted(f"{number}")
    past.sent("again")
    for _ in range(2 * MOST_STEPS):
        past.delivered("again")
        past.answered("again")
    assert past.board.ended == {"COMMITTED": 3 * MOST_SETTLED}
    assert len(past.board.messages) <= MOST_SETTLED + 1
    assert len(past.board.latest(10 * MOST_RECENT)) <= 2 * MOST_RECENT
    again = past.board.find("again")
    assert again is not None
    assert len(again.steps) <= MOST_STEPS
    assert again.steps[0].state == "READY"
    history = past.board._history
    assert len(history.copies) <= MOST_SETTLED + 1
    assert len(history.invocations) <= MOST_SETTLED + MOST_STEPS + 1
    assert sum(len(copy.events) + len(copy.deliveries) for copy in history.copies.values()) <= 10 * MOST_SETTLED
