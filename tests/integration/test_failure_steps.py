"""Failure steps: which are asked, and what they answer; retries that are asked for; which errors are retried."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tarry import (
    Batch,
    ConfigurationError,
    DeadLetter,
    DropMessage,
    Failure,
    Fixed,
    LocalRetry,
    Message,
    Outcome,
    Reject,
    Retry,
    RetryInPlace,
    Schedule,
    SendAgain,
    Undecodable,
    batch_consumer,
    consumer,
)
from tests.loglines import Caplog, field, lines
from tests.records import batch_of, event, record
from tests.settled import fails, orders, reasons, settle, targets
from tests.wire import Wire

NextStep = Callable[[Failure], Outcome]


class FixedAnswer:
    """A failure step that returns a fixed answer, or asks the next step, and keeps the failures it was asked about."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[Failure] = []

    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        self.asked.append(failure)
        return next_step(failure) if self.answer is None else self.answer


def run_one(steps: list[Any], handle: Any = fails, receives: int = 1, **settings: Any) -> tuple[list[str], Wire]:
    return settle(consumer(on_failure=steps, **settings)(handle), event(record("{", receives=receives)))


def raises_reject(message: Message) -> None:
    raise Reject("bad")


# which steps are asked, and their answers


@pytest.mark.parametrize(
    ("handle", "settings", "receives", "reason", "delay", "error", "error_type"),
    [
        (fails, {}, 1, "error", None, ValueError, None),
        (fails, {}, 5, "exhausted", None, ValueError, "ValueError"),
        (fails, {"fatal": ValueError}, 1, "fatal", None, ValueError, "ValueError"),
        (lambda message: message.reject("bad"), {}, 1, "rejected", None, Reject, "tarry.Reject"),
        (raises_reject, {}, 1, "rejected", None, Reject, "tarry.Reject"),
        (lambda message: message.json(), {}, 1, "undecodable", None, Undecodable, "tarry.Undecodable"),
        (lambda message: message.retry(60), {}, 5, "exhausted", 60, type(None), None),
    ],
)
def test_a_failure_step_and_the_failure_record_get_the_reason_and_the_error(
    handle: Any, settings: Any, receives: int, reason: str, delay: int | None, error: Any, error_type: str | None
) -> None:  # SPEC E1, F2
    step = FixedAnswer()
    _, wire = run_one([step, RetryInPlace(), DeadLetter()], handle, receives, **settings)
    [failure] = step.asked
    assert (failure.reason, failure.attempt, failure.queue, failure.delay) == (reason, receives, "orders", delay)
    assert (failure.message.id, failure.crashes) == ("m1", None)
    assert isinstance(failure.error, error)
    sent = [envelope["failure"] for envelope in wire.envelopes()]
    assert [(each["reason"], each.get("type"), each["attempts"]) for each in sent] == (
        [] if reason == "error" else [(reason, error_type, receives)]
    )


def test_failure_steps_are_not_asked_about_acks_discards_and_deferrals() -> None:  # SPEC E1
    step = FixedAnswer()
    for handle in (lambda message: message.ack(), lambda message: message.discard(), lambda message: message.defer(5)):
        run_one([step], handle, receives=9)
    assert step.asked == []


@pytest.mark.parametrize(
    ("answer", "reported", "visibility", "sends"),
    [
        pytest.param(Outcome.retry(), True, 60, 0, id="retry, as the policy says"),
        pytest.param(Outcome.retry(7), True, 7, 0, id="retry"),
        pytest.param(Outcome.retry(0), True, 0, 0, id="retry at once"),
        pytest.param(Outcome.defer(9), False, None, 1, id="defer"),
        pytest.param(Outcome.dead_letter("my reason"), False, None, 1, id="dead letter"),
        pytest.param(Outcome.ack(), False, None, 0, id="ack"),
        pytest.param(Outcome.discard("never mind"), False, None, 0, id="discard"),
        pytest.param(Outcome.unhandled(), True, 900, 0, id="unhandled"),
    ],
)
def test_failure_steps_are_asked_in_order_until_one_returns_an_outcome_which_is_carried_out(
    answer: Outcome, reported: bool, visibility: int | None, sends: int
) -> None:  # SPEC E1, E5
    first, second, third = FixedAnswer(), FixedAnswer(answer), FixedAnswer(Outcome.discard())
    reports, wire = run_one([first, second, third], backoff=Fixed(60))
    assert (len(first.asked), len(second.asked), len(third.asked)) == (1, 1, 0)
    assert reports == (["m1"] if reported else [])
    assert (wire.visibilities().get("handle-m1"), len(wire.sent_entries())) == (visibility, sends)


def forgets_to_return(failure: Failure, next_step: NextStep) -> None:
    next_step(failure)


class RaisesOSError:
    def handle(self, failure: Failure, next_step: NextStep) -> Outcome:
        raise OSError("the pager is down")


NONSENSE: list[Any] = ["ack", {}, 60, Outcome, False, {"batchItemFailures": []}]


@pytest.mark.parametrize(
    "step", [*map(FixedAnswer, NONSENSE), forgets_to_return, RaisesOSError(), RaisesOSError().handle]
)
def test_a_message_stays_in_its_queue_if_a_failure_step_raises_an_exception_or_returns_no_outcome(
    step: Any, caplog: Caplog
) -> None:  # SPEC E3, E5, A2
    reports, wire = run_one([step, DeadLetter()])
    assert (reports, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": 900})
    [line] = lines(caplog, "step_failed")
    why = "the pager is down" if "RaisesOSError" in repr(step) else ": return an Outcome, or next_step(failure)"
    assert why in field(line, "error")


@pytest.mark.parametrize(
    ("backoff", "seconds"), [(Fixed(60), 900), (Schedule([10, 7200, 10]), 7200), (Fixed(43_200), 42_869)], ids=repr
)
def test_an_unhandled_message_waits_for_the_longest_delay_of_the_policy_and_is_logged_as_an_error(
    backoff: Any, seconds: int, caplog: Caplog
) -> None:  # SPEC E4
    reports, wire = run_one([RetryInPlace()], receives=5, backoff=backoff)
    assert (reports, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": seconds})
    [line] = lines(caplog, "unhandled")
    assert (line.levelname, field(line, "message_id"), field(line, "error_type")) == ("ERROR", "m1", "ValueError")
    assert "ValueError: no" in line.getMessage()


@pytest.mark.parametrize(
    ("steps", "handle", "settings", "dead_letters"),
    [
        ([RetryInPlace()], lambda message: message.reject("bad"), {}, ["rejected"]),
        ([RetryInPlace()], lambda message: message.json(), {}, ["undecodable"]),
        ([RetryInPlace()], fails, {"fatal": ValueError}, ["fatal"]),
        ([DeadLetter()], fails, {"max_attempts": 1}, ["error"]),  # nothing is retried in place
        ([], fails, {}, []),  # an empty list means the default
    ],
)
def test_a_failure_that_is_not_retried_is_dead_lettered(
    steps: list[Any], handle: Any, settings: Any, dead_letters: list[str]
) -> None:  # SPEC C8, E1, E2
    reports, wire = run_one(steps, handle, backoff=Fixed(60), **settings)
    assert (reports, targets(wire), reasons(wire)) == (
        ([], ["orders-dlq"], dead_letters) if dead_letters else (["m1"], [], [])
    )
    assert wire.visibilities() == ({} if dead_letters else {"handle-m1": 60})


def test_a_queue_without_a_list_or_with_an_empty_list_gets_the_default_failure_steps() -> None:  # SPEC E2
    handler = consumer(on_failure={"orders": [], "default": [DropMessage()]})(fails)
    reported, wire = settle(handler, event(record(), record("{}", "m2", "refunds")), Wire())
    assert (reported, wire.sent_entries()) == ([], [])


def test_a_built_in_step_is_shown_as_it_was_made() -> None:  # SPEC E3
    steps = [RetryInPlace(), DeadLetter(), DropMessage(), LocalRetry(3), SendAgain("slow", times=2)]
    shown = "RetryInPlace() DeadLetter() DropMessage() LocalRetry(3) SendAgain('slow',times=2)"
    assert " ".join(str(step).replace(" ", "") for step in steps) == shown


# DeadLetter


def test_the_dead_letter_queue_may_depend_on_the_failure() -> None:  # SPEC F6
    _, wire = settle(consumer(on_failure=[DeadLetter(queue=lambda failure: f"{failure.reason}-dlq")])(fails))
    assert targets(wire) == ["error-dlq"]


# settings


async def async_step(failure: Failure, next_step: NextStep) -> Outcome:
    return next_step(failure)


def generator_step(failure: Failure, next_step: NextStep) -> Any:
    yield next_step(failure)


class AsyncStep:
    handle = async_step


NOT_PLAIN: list[Any] = [async_step, generator_step, AsyncStep()]
SLOW = SendAgain("slow")


def of(*steps: Any) -> Callable[[], object]:
    return lambda: consumer(on_failure=[*steps])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SendAgain(""), ""),
        (lambda: SendAgain(5), "SendAgain needs an id, the name of its counter, got 5"),
        *((lambda times=times: SendAgain("slow", times=times), "from 1 to 1000, got ") for times in (0, 1_001, 1.0)),
        (lambda: SendAgain("slow", delay=5, queue="other.fifo"), ""),
        (lambda: SendAgain("slow", queue=5), "SendAgain('slow') takes a queue's name, URL or ARN, or a function"),
        (lambda: LocalRetry(0), ""),
        (lambda: DeadLetter(enrich="x"), ""),
        (lambda: consumer(max_attempts=0), ""),
        (lambda: consumer(log={"body": True}), ""),
        (lambda: batch_consumer(on_failure=[LocalRetry(2)]), ""),
        (lambda: consumer(on_failure=5), "on_failure"),
        (lambda: consumer(on_failure=DeadLetter()), "on_failure"),
        (lambda: consumer(on_failure={"orders": "RetryInPlace"}), "on_failure"),
        (lambda: consumer(on_failure={"orders.fifo": [SendAgain("slow", delay=5)]}), ""),
        (of(DeadLetter(), RetryInPlace()), "must be the last step"),
        (of(DropMessage(), DeadLetter()), "must be the last step"),
        *((of(step), "a failure step must not be async or a generator, got <") for step in NOT_PLAIN),
        (of(lambda failure: None), "a function as a failure step takes (failure, next_step), got <function <lambda>"),
        (of(lambda a, b, c: None), "a function as a failure step takes (failure, next_step), got <function <lambda>"),
        (of(DropMessage), "on_failure takes objects with a method handle(failure, next_step), or functions of these"),
        (of("drop"), "or functions of these two, got 'drop'"),
        (of(None), "or functions of these two, got None"),
        (of(SLOW, SendAgain("slow", queue="b")), "two SendAgain steps of a list have the id 'slow': give each an id"),
        (
            lambda: consumer(on_failure={"orders": [SLOW], "default": [SendAgain("slow")]}),
            "two SendAgain steps have the id 'slow', and would share one counter: give each an id of its own, or put "
            "one step object into both lists",
        ),
    ],
)
def test_invalid_settings_are_refused_when_the_object_is_made(make: Callable[[], object], text: str) -> None:
    """SPEC C5, E1, E3."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert text in str(caught.value)


def test_an_unknown_setting_is_refused() -> None:  # SPEC C5
    make: Any
    for make in (consumer, batch_consumer, consumer(fails).replace):
        with pytest.raises(TypeError, match="max_attemps"):
            make(max_attemps=3)


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


@asked_for
def test_a_retry_that_was_asked_for_is_carried_out_whatever_the_failure_steps(make: Any) -> None:  # SPEC B7
    for step in (DropMessage(), DeadLetter(), SendAgain("slow", delay=10), FixedAnswer(Outcome.discard())):
        reported, wire = settle(make(on_failure=[step]))
        assert (reported, wire.sent_entries(), wire.visibilities()) == (["m1"], [], {"handle-m1": 600})


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


def test_a_retry_that_was_asked_for_without_a_delay_waits_as_the_backoff_says() -> None:  # SPEC B7, C1
    handler = consumer(on_failure=[DropMessage()], backoff=Fixed(77))(lambda message: message.retry())
    assert settle(handler)[1].visibilities() == {"handle-m1": 77}


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
    runs, wire = Runs(failures=2), orders()
    before = wire.clock.now
    assert settle(consumer(on_failure=locally(2, 0.5))(runs), batch_of(3, queue), wire)[0] == []
    assert (" ".join(runs.ids), wire.visibilities()) == (order, {})
    assert wire.clock.now - before == 3
    runs = Runs(failures=1)
    assert settle(consumer(on_failure=locally(1, 1))(runs.asynchronously), batch_of(2))[0] == []
    assert sorted(runs.ids) == ["m0", "m0", "m1", "m1"]


@pytest.mark.parametrize(
    ("steps", "runs"),
    [(locally(3), 4), (locally(1, 27), 2), (locally(1, 28), 1)],
    ids=["one attempt", "with time to run", "without"],
)
def test_all_local_retries_count_as_one_attempt_and_none_waits_beyond_the_deadline(steps: list[Any], runs: int) -> None:
    # SPEC I5
    handle = Runs(failures=9)
    reported, wire = settle(consumer(backoff=Fixed(60), on_failure=steps)(handle))
    assert (reported, len(handle.ids), wire.visibilities()) == (["m1"], runs, {"handle-m1": 60})


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


# retry_when, and the classes of errors


def outcome_of(error: BaseException, **settings: Any) -> str:
    """Return the outcome of a message whose handler raises ``error``."""

    @consumer(backoff=Fixed(60), **settings)
    def handler(message: Message) -> None:
        raise error

    _, wire = settle(handler)
    return reasons(wire)[0] if wire.sent_entries() else f"retry {wire.visibilities()['handle-m1']}"


def from_key_error() -> ValueError:
    error = ValueError()
    error.__cause__ = KeyError()
    return error


@pytest.mark.parametrize(
    ("error", "settings", "outcome"),
    [
        (ConnectionError(), {"fatal": OSError}, "fatal"),
        (ValueError(), {"fatal": OSError}, "retry 60"),
        (ValueError(), {"retry_on": OSError}, "fatal"),
        (Retry(9), {"fatal": Exception}, "retry 9"),
        (from_key_error(), {"fatal": KeyError}, "retry 60"),
        (from_key_error(), {"fatal": KeyError, "traverse_causes": True}, "fatal"),
        (ValueError(), {"fatal": ValueError, "retry_when": lambda _: 5}, "retry 5"),
        (Retry(9), {"retry_when": lambda _: False}, "retry 9"),  # not called for verdicts
        *(
            (ValueError(), {"retry_when": lambda _, answer=answer: answer, "max_attempts": 1}, "exhausted")
            for answer in (True, 0, 5)
        ),
    ],
)
def test_classes_causes_and_retry_when_decide_on_an_error_but_not_on_verdicts_and_attempts(
    error: Exception, settings: Any, outcome: str
) -> None:  # SPEC B3, C8, D1, D2, D3
    assert outcome_of(error, **settings) == outcome


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        *((True, "retry 60"), (False, "fatal"), (None, "retry 60"), (0, "retry 0"), (0.0, "retry 0"), (7.2, "retry 8")),
        *((1, "retry 1"), (timedelta(minutes=2), "retry 120"), (timedelta(0), "retry 0"), (50_000, "retry 43199")),
    ],
    ids=repr,
)
def test_retry_when_decides_on_the_retry_and_its_delay(answer: Any, outcome: str) -> None:  # SPEC D3
    assert outcome_of(ValueError(), retry_when=lambda _: answer) == outcome


def test_a_retry_when_that_returns_true_leaves_the_decision_to_the_failure_steps(caplog: Caplog) -> None:
    # SPEC B7, D3, F5
    caplog.set_level("INFO", "tarry")
    handler = consumer(fatal=ValueError, retry_when=lambda failure: True, on_failure=[DropMessage()])(fails)
    reported, wire = settle(handler)
    assert (reported, wire.visibilities()) == ([], {})
    [line] = lines(caplog, "discarded")
    assert field(line, "error") == "ValueError: no"


def raise_reject(_: Failure) -> None:
    raise Reject("no verdict, but a hook that fails")


INVALID: list[Any] = [
    *("soon", "60", -1, float("nan"), float("inf"), timedelta(-1), [5], object(), Retry(5), Outcome.retry(5)),
]


@pytest.mark.parametrize(
    "hook",
    [*(lambda _, answer=answer: answer for answer in INVALID), lambda _: 1 / 0, lambda: True, raise_reject],
)
def test_a_retry_when_that_fails_or_gives_an_invalid_answer_is_ignored_and_logged(hook: Any, caplog: Caplog) -> None:
    # SPEC D3
    assert outcome_of(ValueError(), retry_when=hook) == "retry 60"
    assert outcome_of(ValueError(), fatal=ValueError, retry_when=hook) == "fatal"
    assert len(lines(caplog, "retry_when_failed")) == 2
