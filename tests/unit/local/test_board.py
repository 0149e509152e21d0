"""The board: timelines and states of messages from the history of a local cloud; messages that only retention ends."""

import json
from functools import partial
from typing import Any

import pytest

from tarry.record.attribute import ATTRIBUTE, body_sum
from tarry.tools.local.cloud import show
from tarry.tools.local.runs.virtual import EndlessFailures
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

    def play(self, script: str) -> None:
        """Call the methods of a script, such as ``logged WAITING_RETRY delay=60; answered m``."""
        for name, *words in map(str.split, script.split("; ")):
            pairs = (word.split("=") for word in words if "=" in word)
            fields: dict[str, Any] = {key: int(value) if value.isdigit() else value for key, value in pairs}
            getattr(self, name)(*(word for word in words if "=" not in word), **fields)

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

    def answered(self, *failed: str, **more: Any) -> None:
        self.record("answered", request_id="r", failed=list(failed), **{"why": "", **more})

    def deleted(self, id: str = "m", by: str = "mapping") -> None:
        self.record("deleted", delivery_id=id, queue="orders", by=by)

    def committed(self, id: str) -> None:
        self.sent(id)
        self.delivered(id)
        self.answered()
        self.deleted(id)

    def copied(self, to: str, id: str = "copy", *, of: str = "m", body: str = "{}", **fields: Any) -> None:
        """Record the send of a copy by a function: to be carried on, or with other fields of its envelope."""
        at = {"visible_at": fields.pop("visible_at")} if "visible_at" in fields else {}
        envelope = {"v": 1, "sum": body_sum(body), "id": of, **(fields or {"carried": 1})}
        attributes = {ATTRIBUTE: {"DataType": "String", "StringValue": json.dumps(envelope)}}
        self.sent(id, to, attributes=attributes, by="http", body=body, **at)

    def dead_letter(self, of: str, id: str, queue: str = "dead") -> None:
        """Record the send of a dead letter, by a function or by a restore; or back to its ``queue``."""
        self.copied(queue, id, of=of, failure={})

    def dead_lettered(self, id: str, *, removed: bool = False) -> None:
        self.sent(id)
        self.delivered(id)
        self.dead_letter(id, f"dead {id}")
        self.deleted(id, by="http")
        self.logged("DEAD_LETTERED", id, dead_letter_queue="dead")
        self.answered()
        if removed:
            self.deleted(f"dead {id}", by="http")

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


IGNORED = "it was deleted, though it was reported as failed: its event source mapping lacks ReportBatchItemFailures"
WAITING, AGAIN = "WAITING_RETRY 1 min -> ", "delivered count=2; deleted by=http; "
LATE = f"answered m; logged WAITING_RETRY delay=60 attempt=1; {AGAIN}answered; logged DEAD_LETTERED attempt=2"
DEAD = f"logged WAITING_RETRY delay=60 attempt=1 error=E; answered m; {AGAIN}logged DEAD_LETTERED reason=all; answered"
COPY = "deleted by=http; logged RESENT sent_to=slow; answered"
ON = "delivered copy queue=slow; logged DISCARDED copy; answered; deleted copy"
MOVE = "moved delivery_id=m queue=dead to=orders new_delivery_id=n origin=redrive"
HISTORIES = {
    "deleted without a log line: committed": ("answered; deleted", "COMMITTED", "", "COMMITTED"),
    "failed without a log line: it waits for its visibility timeout": (
        "answered m", "WAITING_RETRY 30 s", "reported as failed", ""
    ),
    "failed after its visibility was changed": (
        "record visibility_changed delivery_id=m queue=orders visible_until=1600; answered m",
        "WAITING_RETRY 10 min", "reported as failed", "",
    ),
    "log lines give its states": (DEAD, f"{WAITING}IN_FLIGHT 2 -> DEAD_LETTERED", "all", "DEAD_LETTERED"),
    "the user's own line, such as of on_outcome, gives none": (
        f"{DEAD}; logged DEAD_LETTERED event=outcome", f"{WAITING}IN_FLIGHT 2 -> DEAD_LETTERED", "all", "DEAD_LETTERED"
    ),
    "a log line after the answer replaces what was concluded": (
        LATE, f"{WAITING}IN_FLIGHT 2 -> DEAD_LETTERED", "", "DEAD_LETTERED"
    ),
    "a retry that Lambda deletes is lost": (
        "logged WAITING_RETRY delay=60; answered; deleted", f"{WAITING}LOST",
        "it was deleted, though it was WAITING_RETRY", LOST,
    ),
    "deleted though it was reported as failed: lost": ("answered ignored=m; deleted", "LOST", IGNORED, LOST),
    "deleted by another consumer: not lost": (
        "answered m; deleted by=http", "WAITING_RETRY 30 s -> COMMITTED",
        "deleted by something other than its function", "COMMITTED",
    ),
    "sent on as a copy": (f"copied slow; {COPY}", "READY -> RESENT", "", ""),
    "its copy continues it": (
        f"copied slow; {COPY}; {ON}", "READY -> RESENT -> IN_FLIGHT 2 -> DISCARDED", "", "DISCARDED"
    ),
    "the copy of a deferral is one step with its delay": (
        "copied orders visible_at=1035; deleted by=http; logged DEFERRED sent_to=orders delay=35",
        "DEFERRED 35 s", "", "",
    ),
    "a redriven message counts once, by its last end": (
        f"logged DEAD_LETTERED dead_letter_queue=dead; answered; record {MOVE}; committed n",
        "DEAD_LETTERED -> READY -> IN_FLIGHT 1 -> COMMITTED", "", "COMMITTED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("history", HISTORIES)
def test_the_timeline_of_a_message(message: OneMessage, history: str) -> None:
    script, shown, why, end = HISTORIES[history]
    message.play(script)
    assert str(message.timeline) == f"READY -> IN_FLIGHT 1 -> {shown}"
    assert message.timeline.why == why
    assert (message.board.is_settled, +message.board.ended) == (bool(end), {end: 1} if end else {})
    if end:
        assert state_counts(message.board.messages) == {end: 1}
    elif not shown.endswith("RESENT"):
        assert message.timeline.due == NOW + {"30 s": 30, "10 min": 600, "35 s": 35}[shown.partition(" ")[2]]


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


def test_the_body_of_a_message_that_was_edited_and_retried_is_the_latest_one(message: OneMessage) -> None:
    assert message.board.body("m") == "{}"
    message.copied("orders", body='{"id": 8}', edited="2027-01-15T08:00:00.000Z")
    assert message.board.body("m") == message.board.body("copy") == '{"id": 8}'


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
    message.play("invoked; answered; deleted")
    assert str(message.timeline) == "READY -> IN_FLIGHT 1 -> COMMITTED"


def test_a_run_is_hopeless_if_all_messages_wait_beyond_its_end(message: OneMessage) -> None:
    assert not message.board.is_hopeless(until=NOW + 50, stuck=())
    message.play("logged WAITING_RETRY delay=60; answered m")
    assert message.board.is_hopeless(until=NOW + 50, stuck=())
    assert not message.board.is_hopeless(until=NOW + 70, stuck=())
    assert message.board.is_hopeless(until=NOW + 70, stuck=["m"])


def test_a_message_of_the_event_file_has_a_number_and_no_step_for_its_sending() -> None:
    message = OneMessage()
    message.board.number = 7
    message.sent()
    message.board.number = None
    message.delivered()
    assert (message.timeline.number, str(message.timeline), message.stepped) == (7, "IN_FLIGHT 1", ["IN_FLIGHT 1"])


def test_the_latest_messages_come_first_and_a_failed_one_stays() -> None:
    message = OneMessage()
    for number in range(20):
        message.now = NOW + number
        message.sent(f"{number}")
        message.delivered(f"{number}")
        message.answered(*(["3"] if number == 3 else []))
        message.deleted(f"{number}") if number != 3 else None
    assert [each.id for each in message.board.latest(4)] == ["19", "18", "17", "3"]


# memory


def test_a_forgetful_board_does_not_grow() -> None:
    message = OneMessage(forgetful=True)
    for number in range(2 * MOST_SETTLED):
        message.committed(f"{number}")
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


@pytest.fixture
def forgotten() -> tuple[OneMessage, list[str]]:
    """Twice as many dead letters as a board remembers, all removed from their queue: the first half is forgotten."""
    message, ids = OneMessage(forgetful=True), [f"{number}" for number in range(2 * MOST_SETTLED)]
    for id in ids:
        message.dead_lettered(id, removed=True)
    return message, ids


def test_a_forgetful_board_keeps_dead_letters_that_were_removed_and_restored_while_others_settle(
    forgotten: tuple[OneMessage, list[str]],
) -> None:
    message, ids = forgotten
    for id in ids:
        message.dead_letter(id, f"restored {id}")
    for number in range(MOST_SETTLED + 1):
        message.committed(f"other {number}")
    for id in ids:
        message.received(f"restored {id}", queue="dead")
        assert message.board.body(f"restored {id}") == "{}"
        message.deleted(f"restored {id}", by="http")
    assert len(message.board.messages) == len(message.board._history.timelines) == MOST_SETTLED


def test_a_forgotten_dead_letter_that_was_restored_has_a_story_and_counts_once_by_its_last_end_when_it_is_retried(
    forgotten: tuple[OneMessage, list[str]],
) -> None:  # SPEC L6
    message, ids = forgotten
    assert not message.board.stories_of("restored", NOW)
    message.dead_letter("0", "restored")
    [story] = message.board.stories_of("restored", NOW)
    assert [(event.state, event.place) for event in story.events] == [("DEAD_LETTERED", "dead")]
    assert message.board.ended == {"DEAD_LETTERED": len(ids)}
    message.play("deleted restored by=http; dead_letter 0 retried orders; delivered retried; answered; deleted retried")
    assert message.board.ended == {"DEAD_LETTERED": len(ids) - 1, "COMMITTED": 1}


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
    assert caplog.messages == ["a bug in the display of tarry local; the queues are not affected"]


# messages that only their retention can end


class Run:
    """A listener, and methods that record events."""

    def __init__(self, *queues: str, **attributes: str) -> None:
        self.endless = EndlessFailures()
        for queue in queues:
            self.record("queue_configured", queue=queue, attributes=attributes)
            self.record("connected", queue=queue)

    def record(self, what: str, **fields: Any) -> None:
        self.endless.take(HistoryEvent(1.0, what, fields))

    def sent(self, *ids: str, queue: str = "orders", group: str | None = None) -> None:
        for delivery_id in ids:
            self.record("sent", queue=queue, delivery_id=delivery_id, group=group)

    def fails(self, *ids: str, times: int = 10, logged: str = "") -> bool:
        """Record deliveries that fail; return whether the run is over."""
        for _ in range(times):
            self.record("invoked", request_id="r")
            if logged:
                self.record("consumed", request_id="r")
                for delivery_id in ids:
                    self.record("transition_logged", event=logged, delivery_id=delivery_id)
            self.record("answered", request_id="r", failed=list(ids))
        return self.endless.is_over


def test_the_run_is_over_when_all_messages_that_are_left_have_failed_ten_deliveries() -> None:
    run = Run("orders")
    run.sent("a", "b", "c")
    assert not run.fails("a", "b", times=9)
    assert (run.fails("a", "b", times=1), run.endless.text) == (False, "")  # c is left
    run.record("deleted", delivery_id="c")
    assert run.endless.is_over
    start = "Stopped: the 2 messages that are left failed 10 deliveries in a row, and orders"
    assert run.endless.text.startswith(start)
    run.record("invoked", request_id="r")
    assert not run.endless.is_over  # while one of them runs
    run.record("answered", request_id="r", failed=["b"])
    run.record("deleted", delivery_id="a")
    run.record("deleted", delivery_id="b")
    assert not run.endless.is_over  # there are none


@pytest.mark.parametrize(
    ("attributes", "logged", "is_over"),
    [
        (
            {"RedrivePolicy": '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:1:dead", "maxReceiveCount": 99}'},
            "",
            False,
        ),
        ({}, "waiting_retry", False),
        ({}, "unhandled", True),
    ],
    ids=["a redrive policy ends them", "a consumer retries", "a consumer has given them up"],
)
def test_messages_that_something_else_ends_do_not_end_the_run(
    attributes: dict[str, str], logged: str, is_over: bool
) -> None:
    run = Run("orders", **attributes)
    run.sent("a")
    assert run.fails("a", times=50, logged=logged) is is_over


def test_messages_in_queues_without_a_function_are_not_waited_for() -> None:
    run = Run("orders", MessageRetentionPeriod="3600")
    run.sent("a")
    run.sent("elsewhere", queue="archive")
    run.fails("a")
    assert "at the end of the retention (1 h). Give orders a RedrivePolicy" in run.endless.text


def test_messages_behind_a_failing_one_in_their_fifo_group_are_stuck_too() -> None:
    run = Run("orders.fifo", "orders")
    run.sent("a", "b", queue="orders.fifo", group="one")
    assert run.fails("a")
    left = "the 2 messages that are left failed 10 deliveries in a row or wait behind one that did (1), and orders.fifo"
    assert left in run.endless.text
    run.sent("c", queue="orders.fifo", group="two")
    assert not run.endless.is_over
    assert run.fails("c")
    run.sent("d", queue="orders", group="one")  # a fair queue
    assert not run.endless.is_over
