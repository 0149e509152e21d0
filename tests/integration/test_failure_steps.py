"""The failure steps, and the contents of a copy."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tarry import (
    Batch,
    ConfigurationError,
    DeadLetter,
    DropMessage,
    Exponential,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    SendAgain,
    batch_consumer,
    consumer,
)
from tests.loglines import Caplog, field, lines
from tests.records import Context, batch_of, event, record
from tests.settled import fails, orders, redelivered, settle, targets
from tests.wire import Wire, arn


def run_with_copies(handler: Any, wire: Wire, first: dict[str, Any]) -> list[dict[str, Any]]:
    """Run a message and its copies until no copy is sent to a consumed queue; return all sent entries."""
    current, runs = first, 0
    while True:
        sent = len(wire.sent_entries())
        with wire:
            handler(event(current), Context())
        runs += 1
        if len(wire.sent_entries()) == sent or wire.sent("SendMessageBatch")[-1].queue.endswith("-dlq"):
            return wire.sent_entries()
        current = redelivered(wire, f"copy-{runs}")
        wire.clock.now += wire.sent_entries()[-1].get("DelaySeconds", 0) + 1


# SendAgain


def test_two_lists_of_send_again_steps_give_the_expected_runs_and_delays(caplog: Caplog) -> None:  # SPEC E2, E3, E8
    runs: list[str] = []

    @consumer(
        on_failure={
            "orders": [SendAgain("first"), SendAgain("second", queue="failed-messages")],
            "failed-messages": [SendAgain("slow", times=30, delay=Exponential(5, 1.5, 60))],
        }
    )
    def handler(message: Message) -> None:
        runs.append(f"{message.queue} {message.attempt}")
        raise ValueError("always")

    wire = orders()
    sent = run_with_copies(handler, wire, record("{}", "m1"))
    assert len(runs) == 33
    assert runs[:4] == ["orders 1", "orders 2", "failed-messages 3", "failed-messages 4"]
    assert [entry.get("DelaySeconds") for entry in sent[:2]] == [None, None]
    assert [entry["DelaySeconds"] for entry in sent[2:]] == [5, 8, 12, 17, 26, 38, 57] + [60] * 23
    assert [field(line, "message_id") for line in lines(caplog, "unhandled")] == ["m1"]
    warnings = lines(caplog, "many_hops")  # of the loop detection of Lambda, from the twelfth hop on
    assert len(warnings) == 21
    assert "RecursiveLoop" in warnings[0].getMessage()


def test_a_copy_keeps_the_stable_id_attempts_failure_and_history() -> None:  # SPEC E6
    handler = consumer(on_failure=[SendAgain("slow", times=12), DeadLetter()])(fails)
    wire = orders()
    attributes = {"tenant": {"dataType": "String", "stringValue": "acme"}}
    run_with_copies(handler, wire, record("{}", "m1", attributes=attributes))
    copies, dead_letter = wire.envelopes()[:-1], wire.envelopes()[-1]
    assert [copy["carried"] for copy in copies] == list(range(1, 13))
    assert [copy["hops"] for copy in copies] == list(range(1, 13))
    assert [copy["steps"] for copy in copies] == [{"slow": number} for number in range(1, 13)]
    assert {copy["id"] for copy in wire.envelopes()} == {"m1"}
    assert {copy["origin"] for copy in copies} == {arn("orders")}
    assert copies[-1]["failure"]["reason"] == "error"
    assert copies[-1]["failure"]["first_failed_at"] == copies[0]["failure"]["failed_at"]
    assert [entry["attempt"] for entry in copies[-1]["history"]] == [1, *range(4, 13)]
    assert wire.sent_entries()[-1]["MessageAttributes"]["tenant"]["StringValue"] == "acme"
    assert (dead_letter["failure"]["attempts"], "carried" in dead_letter, "steps" in dead_letter) == (13, False, False)


@pytest.mark.parametrize(
    ("delay", "seconds", "due"), [(0, 0, None), (900, 900, None), (901, 900, 901), (43_200, 900, 43_200)]
)
def test_a_long_delay_of_a_copy_is_900_seconds_at_sqs_and_a_due_time(delay: int, seconds: int, due: int | None) -> None:
    # SPEC J4, E3, E6
    reported, wire = settle(consumer(on_failure=[SendAgain("slow", delay=delay)])(fails))
    [entry], [envelope] = wire.sent_entries(), wire.envelopes()
    assert entry["DelaySeconds"] == seconds
    assert envelope.get("due") == (None if due is None else wire.clock.now + due)
    assert (reported, wire.operations[-2:]) == ([], ["SendMessageBatch", "DeleteMessageBatch"])


@pytest.mark.parametrize(
    ("attributes", "body"),
    [
        ({f"a{number}": {"dataType": "String", "stringValue": "x"} for number in range(10)}, "{}"),
        ({}, "x" * 990),
        ({}, "x" * 1_025),
    ],
    ids=["ten attributes", "no space", "no space for the body alone"],
)
def test_a_message_without_space_for_a_tarry_attribute_goes_to_the_next_failure_step(
    attributes: dict[str, Any], body: str, caplog: Caplog
) -> None:  # SPEC E6
    wire = orders(maximum_message_size=1024)
    handler = consumer(on_failure=[SendAgain("slow"), DeadLetter()])(fails)
    assert settle(handler, event(record(body, attributes=attributes)), wire)[0] == []
    assert targets(wire) == ["orders-dlq"]
    assert lines(caplog, "step_passed_on")


def test_no_copy_of_a_fatal_or_rejected_message_is_sent() -> None:  # SPEC E1
    steps = [SendAgain("slow"), DeadLetter()]
    _, wire = settle(consumer(fatal=ValueError, on_failure=steps)(fails))
    settle(consumer(on_failure=steps[:1])(lambda message: message.reject("no")), wire=wire)
    assert targets(wire) == ["orders-dlq", "orders-dlq"]


def test_send_again_works_for_failures_of_a_batch_handler() -> None:  # SPEC E3, B2
    @batch_consumer(on_failure=[SendAgain("slow"), DeadLetter()])
    def handler(batch: Batch) -> None:
        batch[1].fail(ValueError("this one"))

    reported, wire = settle(handler, batch_of(3))
    assert (reported, [entry["MessageBody"] for entry in wire.sent_entries()]) == ([], ["1"])


# FIFO


def on_fifo(*names: str) -> dict[str, Any]:
    return event(*(record("{}", name, "orders.fifo", group="a") for name in names))


def test_a_copy_to_the_same_fifo_queue_needs_breaks_order(caplog: Caplog) -> None:  # SPEC E7
    _, wire = settle(consumer(on_failure=[SendAgain("slow"), DeadLetter()])(fails), on_fifo("m1"))
    assert targets(wire) == ["orders-dlq.fifo"]
    assert "breaks_order=True" in lines(caplog, "step_passed_on")[0].getMessage()


def test_on_fifo_a_copy_keeps_its_group_has_its_own_deduplication_id_and_the_group_continues() -> None:  # SPEC E7, H1
    handler = consumer(on_failure=[SendAgain("slow", times=2, breaks_order=True)])(
        lambda message: fails(message) if message.delivery_id != "m2" else None
    )
    reported, wire = settle(handler, on_fifo("m1", "m2"))
    assert reported == []
    settle(handler, event(redelivered(wire)), wire)
    settle(handler, on_fifo("m1"), wire)
    first, second, repeated = wire.sent_entries()
    assert first["MessageGroupId"] == "a"
    assert "DelaySeconds" not in first
    assert first["MessageDeduplicationId"] != second["MessageDeduplicationId"]
    assert first["MessageDeduplicationId"] == repeated["MessageDeduplicationId"]


# settings


@pytest.mark.parametrize(
    "make",
    [
        lambda: SendAgain(""),
        lambda: SendAgain("slow", times=0),
        lambda: SendAgain("slow", delay=-1),
        lambda: SendAgain("slow", delay=43_201),
        lambda: SendAgain("slow", times=9, delay=Exponential(3600, maximum=90_000)),
        lambda: SendAgain("slow", delay=5, queue="other.fifo"),
        lambda: consumer(on_failure={"orders.fifo": [SendAgain("slow", delay=5)]}),
        lambda: LocalRetry(0),
        lambda: LocalRetry(1, delay=-1),
        lambda: DeadLetter(enrich="x"),
        lambda: consumer(on_failure=[SendAgain("a"), SendAgain("a", queue="b")]),
        lambda: consumer(on_failure={"orders": "RetryInPlace"}),
        lambda: consumer(on_failure=[DropMessage(), DeadLetter()]),
        lambda: batch_consumer(on_failure=[LocalRetry(2)]),
        lambda: consumer(retry_when=True),
        lambda: consumer(traverse_causes="yes"),
    ],
)
def test_invalid_settings_are_refused_when_the_object_is_made(make: Callable[[], object]) -> None:  # SPEC C5, E3
    with pytest.raises(ConfigurationError):
        make()


def test_a_queue_without_a_list_or_with_an_empty_list_gets_the_default_failure_steps() -> None:  # SPEC E2
    handler = consumer(on_failure={"orders": [], "default": [DropMessage()]})(fails)
    reported, wire = settle(handler, event(record(), record("{}", "m2", "refunds")), Wire())
    assert (reported, wire.sent_entries()) == ([], [])


@pytest.mark.parametrize(("settings", "expected"), [({}, (None, None)), ({"max_attempts": 5}, (True, 5))])
def test_a_message_has_a_last_attempt_if_its_list_retries_in_place_or_max_attempts_is_set(
    settings: dict[str, Any], expected: tuple[bool | None, int | None]
) -> None:  # SPEC C2, E2
    seen: dict[str, tuple[bool | None, int | None]] = {}

    @consumer(on_failure={"orders": [DropMessage()]}, **settings)
    def handler(message: Message) -> None:
        seen[message.queue] = message.is_last_attempt, message.max_attempts

    settle(handler, event(record(receives=5), record("{}", "m2", "refunds", receives=5)), Wire())
    assert seen == {"orders": expected, "refunds": (True, 5)}


# retries that are asked for


def retries_all(batch: Batch) -> None:
    batch.retry_all(600)


def raises_retry(message: Message) -> None:
    raise Retry(600)


ASKED_FOR: dict[str, Callable[..., Any]] = {
    "message.retry": lambda **settings: consumer(**settings)(lambda message: message.retry(600)),
    "raise Retry": lambda **settings: consumer(**settings)(raises_retry),
    "retry_all": lambda **settings: batch_consumer(**settings)(retries_all),
    "retry_when": lambda **settings: consumer(retry_when=lambda failure: 600, **settings)(fails),
}
asked_for = pytest.mark.parametrize("make", ASKED_FOR.values(), ids=ASKED_FOR)
NOT_IN_PLACE: list[Any] = [
    DropMessage(),
    DeadLetter(),
    SendAgain("slow", delay=10),
    lambda failure, next_step: Outcome.discard(),
]


@asked_for
@pytest.mark.parametrize("step", NOT_IN_PLACE, ids=["DropMessage", "DeadLetter", "SendAgain", "own"])
def test_a_retry_that_was_asked_for_is_carried_out_whatever_the_failure_steps(make: Any, step: Any) -> None:  # SPEC B7
    reported, wire = settle(make(on_failure=[step]))
    assert (reported, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": 600})


def test_a_retry_that_was_asked_for_without_a_delay_waits_as_the_backoff_says() -> None:  # SPEC B7, C1
    handler = consumer(on_failure=[DropMessage()], backoff=Fixed(77))(lambda message: message.retry())
    assert settle(handler)[1].visibilities() == {"handle-m1": 77}


@asked_for
@pytest.mark.parametrize(
    ("settings", "receives", "reported"),
    [({"max_attempts": 5}, 4, ["m0"]), ({"max_attempts": 5}, 5, []), ({}, 14, ["m0"]), ({}, 15, [])],
    ids=["attempts left", "the last attempt", "max_attempts was not set", "the last delivery"],
)
def test_a_retry_that_was_asked_for_meets_the_failure_steps_only_if_it_is_exhausted(
    make: Any, settings: dict[str, Any], receives: int, reported: list[str]
) -> None:  # SPEC B7, C8
    handler = make(on_failure=[DropMessage()], **settings)
    assert settle(handler, batch_of(1, receives=receives))[0] == reported


def test_a_retry_when_that_returns_true_leaves_the_decision_to_the_failure_steps(caplog: Caplog) -> None:
    # SPEC B7, D3, F5
    caplog.set_level("INFO", "tarry")
    handler = consumer(fatal=ValueError, retry_when=lambda failure: True, on_failure=[DropMessage()])(fails)
    reported, wire = settle(handler)
    assert (reported, wire.visibilities()) == ([], {})
    [line] = lines(caplog, "discarded")
    assert field(line, "error") == "ValueError: no"


def test_an_error_at_max_attempts_is_not_exhausted_if_the_list_retries_nothing_in_place() -> None:  # SPEC C8
    _, wire = settle(consumer(on_failure=[DeadLetter()], max_attempts=3)(fails), batch_of(1, receives=3))
    assert wire.envelopes()[0]["failure"]["reason"] == "error"


# local retries


class Runs:
    """A handler whose first runs of each message fail, and the ids of the messages that it ran."""

    def __init__(self, failures: int) -> None:
        self.ids: list[str] = []
        self._failures = failures

    def __call__(self, message: Message) -> None:
        self.ids.append(message.id)
        if self.ids.count(message.id) <= self._failures:
            raise ConnectionError("busy")

    async def asynchronously(self, message: Message) -> None:
        self(message)


def locally(times: int, delay: float = 0) -> list[Any]:
    return [LocalRetry(times, delay), RetryInPlace()]


@pytest.mark.parametrize(
    ("queue", "order"),
    [("orders", "m0 m1 m2 m0 m0 m1 m1 m2 m2"), ("orders.fifo", "m0 m0 m0 m1 m1 m1 m2 m2 m2")],
)
def test_a_local_retry_runs_the_handler_again_in_the_same_delivery(queue: str, order: str) -> None:  # SPEC I5
    """On a standard queue after the first runs of the other messages."""
    runs = Runs(failures=2)
    wire = orders()
    before = wire.clock.now
    assert settle(consumer(on_failure=locally(2, 0.5))(runs), batch_of(3, queue), wire)[0] == []
    assert (" ".join(runs.ids), wire.visibilities()) == (order, {})
    assert wire.clock.now - before == 3


def test_a_local_retry_runs_an_async_handler_again() -> None:  # SPEC I5
    runs = Runs(failures=1)
    assert settle(consumer(on_failure=locally(1, 1))(runs.asynchronously), batch_of(2))[0] == []
    assert sorted(runs.ids) == ["m0", "m0", "m1", "m1"]


@pytest.mark.parametrize(
    ("steps", "runs"), [(locally(3), 4), (locally(1, 30), 1)], ids=["one attempt", "not beyond the deadline"]
)
def test_all_local_retries_count_as_one_attempt_and_none_waits_beyond_the_deadline(steps: list[Any], runs: int) -> None:
    # SPEC I5
    fails = Runs(failures=9)
    reported, wire = settle(consumer(backoff=Fixed(60), on_failure=steps)(fails))
    assert (reported, len(fails.ids), wire.visibilities()) == (["m1"], runs, {"handle-m1": 60})


def test_a_verdict_given_or_raised_ends_the_local_retries() -> None:  # SPEC I5, B4
    runs: list[str] = []

    @consumer(on_failure=locally(5))
    def handler(message: Message) -> None:
        runs.append(message.id)
        match message.id, runs.count(message.id):
            case "m0", 1:
                message.retry(delay=7)
            case "m1", 1:
                raise Retry(9)
            case "m2", 2:
                return message.discard("enough")
        raise ValueError("again")

    reported, wire = settle(handler, batch_of(3))
    assert (runs, reported) == (["m0", "m1", "m2", "m2"], ["m0", "m1"])
    assert wire.visibilities() == {"handle-m0": 7, "handle-m1": 9}


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_local_retry_ends_the_batch(error: type[BaseException]) -> None:  # SPEC A5, I5
    runs: list[str] = []

    @consumer(backoff=Fixed(60), on_failure=locally(5))
    def handler(message: Message) -> None:
        runs.append(message.id)
        raise ValueError("again") if len(runs) <= 2 else error

    reported, wire = settle(handler, batch_of(2))
    assert (reported, len(runs)) == (["m0", "m1"], 3)
    assert set(wire.visibilities()) == {"handle-m0", "handle-m1"}


# custom steps


def test_a_custom_failure_step_reads_its_note_from_the_earlier_copy() -> None:  # SPEC E5
    seen: list[int] = []

    def thrice(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        seen.append(failure.note("thrice"))
        if failure.note("thrice") < 3:
            return Outcome.resend(delay=1, note={"thrice": failure.note("thrice") + 1})
        return next_step(failure)

    run_with_copies(consumer(on_failure=[thrice, DeadLetter()])(fails), orders(), record("{}", "m1"))
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "note", [{"mine": "x" * 257}, {"mine": -1}, {"mine": 1_001}, {"mine": True}, {"mine": None}, {7: 1}, "mine", 7]
)
def test_a_resend_with_an_invalid_note_leaves_the_message_in_its_queue(note: Any, caplog: Caplog) -> None:
    """SPEC E5, E6. A copy whose note cannot be read would be sent again forever."""
    reported, wire = settle(consumer(on_failure=[lambda failure, next_step: Outcome.resend(note=note)])(fails))
    assert (reported, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": 900})
    assert lines(caplog, "step_failed")


@pytest.mark.parametrize("error", [ValueError("out of order"), Reject("never mind")])
def test_a_message_that_a_step_retries_at_its_last_delivery_is_dead_lettered(error: Exception, caplog: Caplog) -> None:
    """SPEC C8, E5. Otherwise, SQS would move it to the same dead-letter queue without a failure record."""

    @consumer(on_failure=[lambda failure, next_step: Outcome.retry(60)])
    def handler(message: Message) -> None:
        raise error

    wire = orders(max_receive_count=3)
    assert settle(handler, batch_of(1, receives=2), wire)[0] == ["m0"]
    assert settle(handler, batch_of(1, receives=3), wire)[0] == []
    assert [each["failure"]["attempts"] for each in wire.envelopes()] == [3]
    assert "Raise the queue's maxReceiveCount" in field(lines(caplog, "no_delivery_left")[0], "text")


@pytest.mark.parametrize("enrich", [lambda _: 1 / 0, lambda _: {"x": object()}, lambda _: 7])
def test_a_failing_enrich_adds_nothing_and_is_logged(enrich: Any, caplog: Caplog) -> None:  # SPEC F6, A2
    reported, wire = settle(consumer(on_failure=[DeadLetter(enrich=enrich)])(fails))
    assert (reported, "extra" in wire.envelopes()[0]) == ([], False)
    assert lines(caplog, "enrich_failed")


def test_the_dead_letter_queue_may_depend_on_the_failure() -> None:  # SPEC F6
    _, wire = settle(consumer(on_failure=[DeadLetter(queue=lambda failure: f"{failure.reason}-dlq")])(fails))
    assert targets(wire) == ["error-dlq"]


# retry_when, causes


def outcome_of(error: BaseException, **settings: Any) -> str:
    """Return the outcome of a message whose handler raises ``error``."""

    @consumer(backoff=Fixed(60), **settings)
    def handler(message: Message) -> None:
        raise error

    _, wire = settle(handler)
    if wire.sent_entries():
        return wire.envelopes()[0]["failure"]["reason"]
    return f"retry {wire.visibilities()['handle-m1']}"


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (True, "retry 60"),
        (False, "fatal"),
        (None, "retry 60"),
        (0, "retry 0"),
        (0.0, "retry 0"),
        (7.2, "retry 8"),
        (1, "retry 1"),
        (timedelta(minutes=2), "retry 120"),
        (timedelta(0), "retry 0"),
        (50_000, "retry 43199"),
    ],
    ids=repr,
)
def test_retry_when_decides_on_the_retry_and_its_delay(answer: Any, outcome: str) -> None:  # SPEC D3
    assert outcome_of(ValueError(), retry_when=lambda _: answer) == outcome


def test_retry_when_overrides_fatal_and_is_not_called_for_verdicts() -> None:  # SPEC D3, B3
    assert outcome_of(ValueError(), fatal=ValueError, retry_when=lambda _: 5) == "retry 5"
    assert outcome_of(Retry(9), retry_when=lambda _: False) == "retry 9"


def raise_reject(_: Failure) -> None:
    raise Reject("no verdict, but a hook that fails")


INVALID: list[Any] = ["soon", "60", -1, float("nan"), float("inf"), timedelta(-1), [5], object(), Retry(5)]


@pytest.mark.parametrize(
    "hook",
    [
        *(lambda _, answer=answer: answer for answer in [*INVALID, Outcome.retry(5)]),
        lambda _: 1 / 0,
        lambda: True,
        raise_reject,
    ],
)
def test_a_retry_when_that_fails_or_gives_an_invalid_answer_is_ignored_and_logged(hook: Any, caplog: Caplog) -> None:
    # SPEC D3
    assert outcome_of(ValueError(), retry_when=hook) == "retry 60"
    assert outcome_of(ValueError(), fatal=ValueError, retry_when=hook) == "fatal"
    assert len(lines(caplog, "retry_when_failed")) == 2


@pytest.mark.parametrize("answer", [True, 0, 5])
def test_retry_when_does_not_allow_more_than_max_attempts(answer: Any) -> None:  # SPEC D3, C8
    assert outcome_of(ValueError(), retry_when=lambda _: answer, max_attempts=1) == "exhausted"


def chain(error: BaseException, cause: BaseException, *, explicit: bool) -> BaseException:
    setattr(error, "__cause__" if explicit else "__context__", cause)
    return error


def suppressed() -> BaseException:
    error = chain(ValueError(), KeyError(), explicit=False)
    error.__suppress_context__ = True
    return error


def cycle() -> BaseException:
    first, second = ValueError("a"), TypeError("b")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (chain(ValueError(), KeyError(), explicit=True), "fatal"),
        (chain(ValueError(), KeyError(), explicit=False), "fatal"),
        (ExceptionGroup("g", [ValueError(), KeyError()]), "fatal"),
        (chain(ValueError(), OSError(), explicit=True), "retry 60"),
        (chain(ConnectionError(), KeyError(), explicit=True), "retry 60"),
        (cycle(), "retry 60"),
        (suppressed(), "retry 60"),
    ],
    ids=["a cause", "a context", "a group", "another cause", "a nearer class", "a cycle", "a suppressed context"],
)
def test_traverse_causes_classifies_an_error_by_its_causes(error: BaseException, outcome: str) -> None:  # SPEC D2, D1
    settings = {"fatal": KeyError, "retry_on": ConnectionError}
    assert outcome_of(error, traverse_causes=True, **settings) == outcome
    assert outcome_of(error, **settings) == "retry 60"
