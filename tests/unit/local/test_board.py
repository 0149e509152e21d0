"""The board: the timelines and states of messages, from the history of a local cloud."""

import json
from functools import partial
from typing import Any

import pytest

from tarry.record.attribute import ATTRIBUTE, body_sum
from tarry.tools.local.cloud import show
from tarry.tools.local.show.board import MOST_RECEIVES, MOST_SETTLED, MOST_STEPS, Board
from tarry.tools.local.show.timeline import LOST, MessageTimeline, state_counts
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.story.lines import LogEntry, TarryLine, event_of

NOW = 1_000.0


class OneMessage:
    """A board, and methods that record the events of one message."""

    def __init__(self, *, forgetful: bool = False) -> None:
        self.stepped: list[str] = []
        self.board = Board({"orders", "slow"}, lambda timeline: self.stepped.append(str(timeline)), forgetful=forgetful)
        self.now = NOW

    def record(self, what: str, **fields: Any) -> None:
        self.board.take(HistoryEvent(self.now, what, fields))

    def sent(self, id: str = "m", queue: str = "orders", **fields: Any) -> None:
        self.record("sent", queue=queue, delivery_id=id, **{"body": "{}", "attributes": {}, **fields})

    def received(self, id: str = "m", count: int = 1, queue: str = "orders", **fields: Any) -> None:
        defaults = {"receive_count": count, "visible_until": self.now + 30, "group": None}
        self.record("received", queue=queue, delivery_id=id, **{**defaults, **fields})

    def invoked(self, *ids: str) -> None:
        self.record("invoked", function="f", request_id="r", delivery_ids=list(ids or ["m"]), cold=False)

    def delivered(self, id: str = "m", count: int = 1, queue: str = "orders") -> None:
        self.received(id, count, queue)
        self.invoked(id)

    def logged(self, state: str, id: str = "m", **fields: Any) -> None:
        """Record a line of tarry's log."""
        fields = {"event": state.lower(), "state": state, "delivery_id": id, **fields}
        self.record("logged", function="f", request_id="r", line="", fields=fields)

    def answered(self, *failed: str, why: str = "") -> None:
        self.record("answered", request_id="r", failed=list(failed), why=why)

    def deleted(self, id: str = "m", by: str = "mapping") -> None:
        self.record("deleted", delivery_id=id, queue="orders", by=by)

    def dead_letter(self, id: str, delivery_id: str, queue: str = "dead") -> None:
        """Record the send of a dead letter with its record, by a function or by a restore; or back to its ``queue``."""
        record = {"v": 1, "sum": body_sum("{}"), "id": id, "failure": {}}
        attributes = {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(record)}}
        self.sent(delivery_id, queue, attributes=attributes, by="http")

    def dead_lettered(self, id: str) -> None:
        self.sent(id)
        self.delivered(id)
        self.dead_letter(id, f"dead {id}")
        self.deleted(id, by="http")
        self.logged("DEAD_LETTERED", id, dead_letter_queue="dead")
        self.answered()

    @property
    def timeline(self) -> MessageTimeline:
        found = self.board.find("m")
        assert found is not None
        return found


@pytest.fixture
def message() -> OneMessage:
    message = OneMessage()
    message.sent()
    message.delivered()
    return message


def test_a_deleted_message_without_a_log_line_is_committed(message: OneMessage) -> None:
    message.answered()
    message.deleted()
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> COMMITTED"
    assert message.board.is_settled
    assert message.board.ended == {"COMMITTED": 1}


@pytest.mark.parametrize(("changed", "text"), [(None, "30 s"), (600, "10 min")])
def test_a_failed_message_without_a_log_line_waits_for_its_visibility_timeout(
    message: OneMessage, changed: int | None, text: str
) -> None:
    if changed is not None:
        message.record("visibility_changed", delivery_id="m", queue="orders", visible_until=NOW + changed)
    message.answered("m")
    assert str(message.timeline) == f"READY -> IN_FLIGHT 1 -> WAITING_RETRY {text}"
    assert message.timeline.due == NOW + (changed or 30)
    assert not message.board.is_settled


def test_a_log_line_gives_the_state(message: OneMessage) -> None:
    message.logged("WAITING_RETRY", delay=60, attempt=1, error="ValueError: no", reason="error")
    message.answered("m")
    message.delivered(count=2)
    message.deleted(by="http")
    message.logged("DEAD_LETTERED", attempt=2, reason="exhausted", dead_letter_queue="dead")
    message.answered()
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> WAITING_RETRY 1 min -> IN_FLIGHT 2 -> DEAD_LETTERED"
    assert state_counts(message.board.messages) == {"DEAD_LETTERED": 1}
    message.logged("DEAD_LETTERED", event="outcome")  # the user's own line, such as of on_outcome
    assert str(message.timeline).count("DEAD_LETTERED") == 1


def test_a_log_line_after_the_answer_replaces_the_concluded_state(message: OneMessage) -> None:
    message.answered("m")
    message.logged("WAITING_RETRY", delay=60, attempt=1)
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> WAITING_RETRY 1 min"
    message.delivered(count=2)
    message.deleted(by="http")
    message.answered()
    message.logged("DEAD_LETTERED", attempt=2)
    assert message.board.ended == {"DEAD_LETTERED": 1}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"reason": "error", "error": "ValueError: no"}, "ValueError: no"),
        ({"reason": "error"}, "the handler asked for it"),
        ({"state": "DEAD_LETTERED", "reason": "exhausted", "error": "ValueError: no"}, "exhausted: ValueError: no"),
        ({"state": "DEAD_LETTERED", "reason": "exhausted"}, "exhausted"),
        ({"reason": "exhausted", "not_sent": "AccessDenied"}, "AccessDenied"),
        ({}, ""),
    ],
)
def test_a_log_line_gives_the_reason_for_the_state(fields: dict[str, str], why: str) -> None:
    line = {"state": "WAITING_RETRY", **fields}
    assert event_of(TarryLine(LogEntry(0, ""), "", line)).why == why


def test_a_retry_that_lambda_deletes_is_lost(message: OneMessage) -> None:
    message.logged("WAITING_RETRY", delay=60)
    message.answered()
    message.deleted()
    assert message.timeline.state == LOST
    assert message.timeline.why == "it was deleted, though it was WAITING_RETRY"
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> WAITING_RETRY 1 min -> LOST"


def test_a_message_deleted_by_another_consumer_is_not_lost(message: OneMessage) -> None:
    message.answered("m")
    message.deleted(by="http")
    assert message.timeline.state == "COMMITTED"
    assert message.timeline.why == "deleted by something other than its function"


def test_a_copy_continues_the_timeline_of_its_original(message: OneMessage) -> None:
    record = {"v": 1, "sum": body_sum("{}"), "id": "m", "carried": 1}
    attributes = {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(record)}}
    message.sent("copy", "slow", attributes=attributes, by="http")
    message.deleted(by="http")
    message.logged("RESENT", sent_to="slow")
    message.answered()
    assert not message.board.is_settled
    message.delivered("copy", queue="slow")
    message.logged("DISCARDED", "copy")
    message.answered()
    message.deleted("copy")
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> READY -> RESENT -> IN_FLIGHT 2 -> DISCARDED"
    assert message.board.is_settled


def test_the_body_of_a_message_that_was_edited_and_retried_is_the_latest_one(message: OneMessage) -> None:
    record = {"v": 1, "sum": body_sum('{"id": 8}'), "id": "m", "edited": "2027-01-15T08:00:00.000Z"}
    attributes = {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(record)}}
    assert message.board.body("m") == "{}"
    message.sent("copy", body='{"id": 8}', attributes=attributes, by="http")
    assert message.board.body("m") == message.board.body("copy") == '{"id": 8}'


def test_the_copy_of_a_deferred_message_is_one_step_with_its_delay(message: OneMessage) -> None:
    record = {"v": 1, "sum": body_sum("{}"), "id": "m", "carried": 1}
    attributes = {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(record)}}
    message.sent("copy", "orders", attributes=attributes, by="http", visible_at=NOW + 35)
    message.deleted(by="http")
    message.logged("DEFERRED", sent_to="orders", delay=35)
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> DEFERRED 35 s"


def test_on_fifo_a_message_behind_another_of_its_group_is_at_its_first_attempt() -> None:
    message = OneMessage()
    for id in ("a", "b"):
        message.sent(id, "orders.fifo")
        message.received(id, 3, "orders.fifo", group="g")
    message.invoked("a", "b")
    assert [each.attempt for each in message.board.messages] == [3, 1]


def test_without_an_event_of_its_sending_a_timeline_begins_with_the_receive() -> None:
    message = OneMessage()
    message.sent("elsewhere", queue="dead-letters")
    assert message.board.is_settled, "no function consumes its queue"
    message.received(body="{}", attributes={}, by="mapping")
    message.invoked()
    message.answered()
    message.deleted()
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> COMMITTED"


def test_a_run_is_hopeless_if_all_messages_wait_beyond_its_end(message: OneMessage) -> None:
    assert not message.board.is_hopeless(until=NOW + 50, stuck=())
    message.logged("WAITING_RETRY", delay=60)
    message.answered("m")
    assert message.board.is_hopeless(until=NOW + 50, stuck=())
    assert not message.board.is_hopeless(until=NOW + 70, stuck=())
    assert message.board.is_hopeless(until=NOW + 70, stuck=["m"])


def test_a_redriven_message_is_counted_once_by_its_last_end(message: OneMessage) -> None:
    message.logged("DEAD_LETTERED", dead_letter_queue="dead")
    message.answered()
    message.record("moved", delivery_id="m", queue="dead", to="orders", new_delivery_id="n", origin="redrive")
    message.sent("n")
    message.delivered("n")
    message.answered()
    message.deleted("n")
    assert +message.board.ended == {"COMMITTED": 1}


def test_a_message_of_the_event_file_has_a_number_and_no_step_for_its_sending() -> None:
    message = OneMessage()
    message.board.number = 7
    message.sent()
    message.board.number = None
    message.delivered()
    assert (message.timeline.number, str(message.timeline)) == (7, "IN_FLIGHT 1")
    assert message.stepped == ["IN_FLIGHT 1"]


def test_the_latest_messages_come_first_and_a_failed_one_stays() -> None:
    message = OneMessage()
    for number in range(20):
        message.now = NOW + number
        message.sent(f"{number}")
        message.delivered(f"{number}")
        message.answered(*(["3"] if number == 3 else []))
        message.deleted(f"{number}") if number != 3 else None
    assert [each.id for each in message.board.latest(4)] == ["19", "18", "17", "3"]


def test_a_forgetful_board_does_not_grow() -> None:
    message = OneMessage(forgetful=True)
    for number in range(2 * MOST_SETTLED):
        message.sent(f"{number}")
        message.delivered(f"{number}")
        message.answered()
        message.deleted(f"{number}")
    message.sent("again")
    for _ in range(2 * MOST_STEPS):
        message.delivered("again")
        message.answered("again")
    assert message.board.ended == {"COMMITTED": 2 * MOST_SETTLED}
    assert len(message.board.messages) <= MOST_SETTLED + 1
    again = message.board.find("again")
    assert again is not None
    assert len(again.steps) <= MOST_STEPS
    assert again.steps[0].state == "READY"
    history = message.board._history
    assert len(history.copies) <= MOST_SETTLED + 1
    assert len(history.invocations) <= MOST_SETTLED + MOST_STEPS + 1
    assert sum(len(copy.events) + len(copy.deliveries) for copy in history.copies.values()) <= 10 * MOST_SETTLED
    message.deleted("again")
    for number in range(MOST_SETTLED):  # of another SQS, whose deletes it does not see
        message.received(f"other {number}", body="{}", attributes={}, sent_at=NOW)
        message.invoked(f"other {number}")
        message.logged("DEAD_LETTERED", f"other {number}")
    assert len(message.board.messages) == MOST_SETTLED


def test_a_forgetful_board_keeps_every_message_that_a_queue_holds() -> None:  # SPEC N1
    message = OneMessage(forgetful=True)
    dead = [f"{number}" for number in range(MOST_SETTLED + 160)]
    for id in dead:
        message.dead_lettered(id)
    for id in dead:
        message.received(f"dead {id}", queue="dead")
        assert str(message.board.find(id)) == "READY -> IN_FLIGHT 1 -> DEAD_LETTERED"
        assert message.board.body(f"dead {id}") == "{}"
    for id in dead:
        message.deleted(f"dead {id}", by="http")
    assert len(message.board.messages) == MOST_SETTLED
    assert message.board.ended == {"DEAD_LETTERED": len(dead)}


def test_a_forgetful_board_keeps_dead_letters_that_were_removed_and_restored_while_others_settle() -> None:
    message = OneMessage(forgetful=True)
    ids = [f"{number}" for number in range(2 * MOST_SETTLED)]
    for id in ids:
        message.dead_lettered(id)
        message.deleted(f"dead {id}", by="http")
    for id in ids:  # the first half is forgotten
        message.dead_letter(id, f"restored {id}")
    for number in range(MOST_SETTLED + 1):
        message.sent(f"other {number}")
        message.delivered(f"other {number}")
        message.answered()
        message.deleted(f"other {number}")
    for id in ids:
        message.received(f"restored {id}", queue="dead")
        assert message.board.body(f"restored {id}") == "{}"
        message.deleted(f"restored {id}", by="http")
    assert len(message.board.messages) == MOST_SETTLED
    assert len(message.board._history.timelines) == MOST_SETTLED


def test_a_forgotten_dead_letter_that_was_restored_and_retried_is_counted_once_by_its_last_end() -> None:
    message = OneMessage(forgetful=True)
    for id in (ids := [f"{number}" for number in range(2 * MOST_SETTLED)]):
        message.dead_lettered(id)
        message.deleted(f"dead {id}", by="http")
    message.dead_letter("0", "restored")
    message.deleted("restored", by="http")
    message.dead_letter("0", "retried", queue="orders")
    message.delivered("retried")
    message.answered()
    message.deleted("retried")
    assert message.board.ended == {"DEAD_LETTERED": len(ids) - 1, "COMMITTED": 1}


def test_a_forgotten_dead_letter_that_was_restored_has_a_story_before_it_is_retried() -> None:  # SPEC L6
    message = OneMessage(forgetful=True)
    for id in (ids := [f"{number}" for number in range(MOST_SETTLED + 1)]):
        message.dead_lettered(id)
        message.deleted(f"dead {id}", by="http")
    assert not message.board.stories_of("restored", NOW)
    message.dead_letter("0", "restored")
    [story] = message.board.stories_of("restored", NOW)
    assert [(event.state, event.place) for event in story.events] == [("DEAD_LETTERED", "dead")]
    assert message.board.ended == {"DEAD_LETTERED": len(ids)}


def test_a_message_that_is_delivered_again_after_its_dead_letter_is_shown_in_its_own_queue(message: OneMessage) -> None:
    message.dead_lettered("m")
    message.delivered("m", count=2)
    [story] = message.board.stories_of("m", NOW)
    dead, again = story.events[-2:]
    assert (dead.origin, dead.place, dead.state) == ("orders", "dead", "DEAD_LETTERED")
    assert (again.origin, again.sent_to, again.words(dead)) == ("orders", "", "in orders, attempt 2")


def test_a_dead_letter_that_is_inspected_again_and_again_takes_no_more_memory() -> None:
    message = OneMessage(forgetful=True)
    message.sent(queue="dead")
    for count in range(1, 1_000):
        message.received(count=count, queue="dead", receipt_handle=f"{count}")
        changed = {"receipt_handle": f"{count}", "visible_until": NOW}
        message.record("visibility_changed", delivery_id="m", queue="dead", **changed)
    copy = message.board._history.copies["m"]
    assert max(map(len, (copy.events, copy.deliveries, copy.changes, copy.changes_by_handle))) <= 2 * MOST_RECEIVES
    assert (copy.deliveries[0].count, copy.deliveries[-1].count) == (1, 999)


def test_a_bug_of_the_display_does_not_fail_the_request_that_made_the_event(caplog: pytest.LogCaptureFixture) -> None:
    history, taken = History(lambda: NOW), []

    def on_event(event: HistoryEvent) -> None:
        taken.append(event.fields["body"])

    history.listen(partial(show, on_event))
    history.record("received", queue="orders")
    history.record("received", queue="orders", body="{}")
    assert taken == ["{}"]
    assert [record.message for record in caplog.records] == [
        "a bug in the display of tarry local; the queues are not affected"
    ]


def test_a_message_that_is_deleted_though_it_was_reported_as_failed_is_lost(message: OneMessage) -> None:
    message.record("answered", request_id="r", failed=[], ignored=["m"], why="")
    message.deleted()
    assert message.timeline.state == LOST
    assert message.timeline.lost.startswith(
        "it was deleted, though it was reported as failed: its event source mapping"
    )
    assert message.board.ended == {LOST: 1}
