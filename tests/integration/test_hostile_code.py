"""User code that raises wherever it is touched affects only its own message; the other messages are settled.

In each batch, the messages 0 and 3 succeed, 1 meets hostile code, and 2 fails in an ordinary way.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

from tarry import (
    Batch,
    BatchError,
    Consumer,
    DeadLetter,
    Failure,
    Fixed,
    LogOptions,
    Message,
    Outcome,
    RetryInPlace,
    RetryPolicy,
    batch_consumer,
    consumer,
)
from tarry.message.diagnosis import diagnose
from tarry.message.outcomes import find_signal
from tarry.support.guards import chain, everything_in, text_of, type_name
from tests import hostile  # not its classes: pytest looks into every object of a test module
from tests.hostile import ERRORS, HostileText, Touched, caused, odd, refuse
from tests.loglines import field, lines
from tests.records import Context, batch_of, event, failed, record
from tests.wire import Queue, Wire

Make = Callable[[], BaseException]


def orders(queue: str = "orders") -> Wire:
    dead = queue.replace("orders", "orders-dlq")
    return Wire(queues={queue: Queue(dead_letter=dead), dead: Queue()})


def four(queue: str = "orders") -> dict[str, Any]:
    if not queue.endswith(".fifo"):
        return batch_of(4)
    return event(*(record(index, f"m{index}", queue, group=f"g{index}") for index in range(4)))


def behave(message: Message, make: Make) -> None:
    match message.delivery_id:
        case "m1":
            raise make()
        case "m2":
            raise ValueError("ordinary")


def one_by_one(make: Make, **settings: Any) -> Consumer[Any]:
    return consumer(**settings)(lambda message: behave(message, make))


def in_threads(make: Make, **settings: Any) -> Consumer[Any]:
    return consumer(concurrency=3, **settings)(lambda message: behave(message, make))


def in_tasks(make: Make, **settings: Any) -> Consumer[Any]:
    @consumer(concurrency=3, **settings)
    async def handler(message: Message) -> None:
        await asyncio.sleep(0)
        behave(message, make)

    return handler


def in_a_batch_handler(make: Make, **settings: Any) -> Consumer[Any]:
    @batch_consumer(**settings)
    def handler(batch: Batch) -> None:
        for message in batch:
            try:
                behave(message, make)
            except BaseException as error:  # noqa: BLE001 as a bulk handler reports item by item
                message.fail(error)

    return handler


def in_an_async_batch_handler(make: Make, **settings: Any) -> Consumer[Any]:
    @batch_consumer(**settings)
    async def handler(batch: Batch) -> None:
        in_a_batch_handler(make).function(batch)

    return handler


OF_ERRORS = {name: make for name, make in ERRORS.items() if name not in ("a Retry", "a Defer")}


@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("way", [one_by_one, in_threads, in_tasks])
def test_a_hostile_error_fails_only_its_own_message(way: Any, name: str, queue: str) -> None:  # SPEC A2, A5
    with orders(queue) as wire:
        response = way(ERRORS[name], backoff=Fixed(60))(four(queue), Context())
    settled = {dead_letter["MessageBody"] for dead_letter in wire.sent_entries()}
    assert "m2" in failed(response)
    assert set(failed(response)) <= {"m1", "m2"}
    assert wire.visibilities()["handle-m2"] == 60
    assert settled <= {"1"}
    assert "m1" in failed(response) or name == "a Discard" or settled == {"1"}


@pytest.mark.parametrize("name", OF_ERRORS)
@pytest.mark.parametrize("way", [in_a_batch_handler, in_an_async_batch_handler])
def test_a_hostile_error_passed_to_fail_in_a_batch_handler_fails_only_its_own_message(
    way: Any, name: str
) -> None:  # SPEC B2, A2
    with orders() as wire:
        response = way(ERRORS[name], backoff=Fixed(60))(four(), Context())
    assert wire.visibilities()["handle-m2"] == 60
    assert "m2" in failed(response)
    assert set(failed(response)) <= {"m1", "m2"}


@pytest.mark.parametrize("way", [one_by_one, in_threads, in_tasks, in_a_batch_handler])
def test_a_hostile_error_is_retried_and_dead_lettered_like_any_other(way: Any) -> None:  # SPEC A2, F2
    with orders() as wire:
        response = way(ERRORS["an error with a cause"], max_attempts=1)(four(), Context())
    assert failed(response) == []
    [first, second] = wire.envelopes()
    assert first["failure"]["type"] == "?.HostileError"
    assert "describing" in first["failure"]["message"]
    assert second["failure"]["type"] == "ValueError"


def test_a_hostile_error_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:  # SPEC L2, A2
    with orders():
        one_by_one(ERRORS["an error"], backoff=Fixed(60))(four(), Context())
    [line, _] = lines(caplog, "waiting_retry")
    assert field(line, "error_type") == "?.HostileError"
    assert "in behave" in field(line, "traceback")


def test_a_hostile_error_of_a_batch_handler_fails_each_message_without_a_verdict() -> None:  # SPEC B5
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        batch[0].ack()
        raise hostile.HostileError

    with orders() as wire:
        assert failed(handler(four(), Context())) == ["m1", "m2", "m3"]
    assert set(wire.visibilities().values()) == {60}


def test_a_hostile_batch_error_fails_all_messages() -> None:  # SPEC B5, A2
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        error = BatchError.__new__(type(odd(BatchError, "x")), "x")
        raise error

    with orders():
        assert failed(handler(four(), Context())) == ["m0", "m1", "m2", "m3"]


@pytest.mark.parametrize("name", ["a Retry", "a Defer"])
def test_a_signal_whose_delay_cannot_be_read_is_an_ordinary_failure(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC B3, A2
    with orders() as wire:
        response = one_by_one(ERRORS[name], backoff=Fixed(60))(four(), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 60}
    [line] = lines(caplog, "verdict_unreadable")
    assert field(line, "message_id") == "m1"


@pytest.mark.parametrize("traverse_causes", [False, True])
def test_the_policy_classifies_a_hostile_error_without_touching_it(traverse_causes: bool) -> None:  # SPEC D1, D2
    fatal = RetryPolicy(fatal=KeyError, traverse_causes=traverse_causes)
    assert fatal.reason(hostile.HostileError()) == "error"
    assert fatal.reason(caused(KeyError())) == ("fatal" if traverse_causes else "error")


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_read_without_running_its_own_code(name: str) -> None:  # SPEC A2
    error = ERRORS[name]()
    assert [type_name(each) for each in chain(error)]
    assert everything_in(error, with_suppressed=True)[0] is error
    diagnosis = diagnose(error)
    assert (type(diagnosis.type), type(diagnosis.message)) == (str, str)
    find_signal(error)


def test_the_cause_of_an_error_is_found_although_its_truth_value_raises() -> None:  # SPEC A2
    """``error.__cause__ or error.__context__`` would ask for the truth value of the cause."""
    error = ValueError("outer")
    error.__cause__ = hostile.HostileError("inner")
    assert len(list(chain(error))) == 2

    def raises(message: Message) -> None:
        raise error

    with orders():
        assert failed(consumer(raises)(batch_of(3), Context())) == ["m0", "m1", "m2"]


def test_a_string_subclass_becomes_a_plain_string() -> None:  # SPEC A2
    text = text_of(HostileText("secret"), 100)
    assert type(text) is str


# hooks


def raises_touched(*_: Any, **__: Any) -> Any:
    raise Touched


def raises_hostile(*_: Any, **__: Any) -> Any:
    raise hostile.HostileError


def exits(*_: Any, **__: Any) -> Any:
    raise SystemExit(3)


class HostileStep:
    def __init__(self, does: Callable[..., Any]) -> None:
        self._does = does

    def handle(self, failure: Failure, next_step: Callable[[Failure], Outcome]) -> Outcome:
        if failure.message.delivery_id == "m1":
            outcome: Outcome = self._does(failure)
            return outcome
        return next_step(failure)


class HostileOutcome(Outcome):
    __slots__ = ()
    __eq__ = __hash__ = __repr__ = refuse  # type: ignore[assignment]


class HostileBackoff(Fixed):
    """A backoff that fails at attempt 2, but only once the consumer is made, which would refuse it otherwise."""

    __slots__ = ("_does", "fails")

    def __init__(self, does: Callable[..., Any]) -> None:
        super().__init__(60)
        object.__setattr__(self, "_does", does)
        object.__setattr__(self, "fails", False)

    def delay(self, attempt: int, rng: Any = None) -> float:
        if attempt == 2 and self.fails:
            answer: float = self._does()
            return answer
        return 60


FAILING = [raises_touched, raises_hostile, exits, lambda *_: HostileText("nonsense"), lambda *_: hostile.HostileError()]


@pytest.mark.parametrize("does", FAILING)
@pytest.mark.parametrize("queue", ["orders", "orders.fifo"])
@pytest.mark.parametrize("way", [one_by_one, in_threads, in_tasks])
def test_a_hostile_failure_step_affects_only_its_own_message(way: Any, queue: str, does: Any) -> None:  # SPEC E5, A2
    steps = [HostileStep(does), RetryInPlace(), DeadLetter()]
    with orders(queue) as wire:
        response = way(ValueError, backoff=Fixed(60), on_failure=steps)(four(queue), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities()["handle-m2"] == 60


@pytest.mark.parametrize(
    "outcome",
    [
        lambda _: HostileOutcome("dead_letter", reason="odd"),
        lambda _: Outcome.dead_letter(HostileText("odd")),
        lambda _: Outcome("dead_letter", reason="odd", queue="orders-dlq"),
    ],
    ids=["an outcome subclass", "a string subclass as reason", "a plain outcome"],
)
def test_an_outcome_with_hostile_values_is_carried_out(outcome: Any) -> None:  # SPEC E5, A2
    with orders() as wire:
        response = one_by_one(ValueError, backoff=Fixed(60), on_failure=[HostileStep(outcome), RetryInPlace()])(
            four(), Context()
        )
    assert failed(response) == ["m2"]
    assert [dead_letter["MessageBody"] for dead_letter in wire.sent_entries()] == ["1"]


@pytest.mark.parametrize("does", FAILING)
def test_a_hostile_backoff_affects_only_its_own_message(does: Any) -> None:  # SPEC C1, A2
    given = event(*(record(index, f"m{index}", receives=2 if index == 1 else 1) for index in range(4)))
    backoff = HostileBackoff(does)
    handler = one_by_one(ValueError, backoff=backoff)
    object.__setattr__(backoff, "fails", True)
    with orders() as wire:
        response = handler(given, Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities()["handle-m2"] == 60


class BackoffWithoutBounds(Fixed):
    """A backoff whose longest delay, which an unhandled message waits for, cannot be read."""

    __slots__ = ()
    bounds = raises_touched

    def delay(self, attempt: int, rng: Any = None) -> float:
        return 60


def test_an_unhandled_message_waits_15_minutes_if_the_backoff_has_no_longest_delay() -> None:
    steps = [HostileStep(raises_touched), RetryInPlace()]  # SPEC E4, A2
    with orders() as wire:
        response = one_by_one(ValueError, backoff=BackoffWithoutBounds(60), on_failure=steps)(four(), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 900, "handle-m2": 60}


@pytest.mark.parametrize("does", FAILING)
@pytest.mark.parametrize("way", [one_by_one, in_threads, in_tasks, in_a_batch_handler])
def test_a_hostile_retry_when_is_ignored_and_logged(
    way: Any, does: Any, caplog: pytest.LogCaptureFixture
) -> None:  # SPEC D3
    with orders() as wire:
        response = way(ValueError, backoff=Fixed(60), retry_when=does)(four(), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 60}
    assert len(lines(caplog, "retry_when_failed")) == 2


@pytest.mark.parametrize("hook", ["enrich", "redact"])
@pytest.mark.parametrize("does", [*FAILING, lambda *_: {HostileText("a"): 1}, lambda *_: {"a": hostile.HostileError()}])
def test_a_hostile_hook_of_a_dead_letter_does_not_prevent_dead_lettering(hook: str, does: Any) -> None:  # SPEC F3, F6
    with orders() as wire:
        steps = [RetryInPlace(), DeadLetter(**{hook: does})]
        response = one_by_one(ValueError, max_attempts=1, on_failure=steps)(four(), Context())
    assert failed(response) == []
    assert [each["failure"]["reason"] for each in wire.envelopes()] == ["exhausted", "exhausted"]


@pytest.mark.parametrize("does", FAILING)
def test_a_hostile_redact_of_the_log_does_not_prevent_settlement(does: Any) -> None:  # SPEC L2, A2
    with orders() as wire:
        response = one_by_one(ValueError, backoff=Fixed(60), log=LogOptions(redact=does))(four(), Context())
    assert failed(response) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 60}


def test_a_log_filter_that_exits_does_not_prevent_settlement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC A2
    monkeypatch.setattr(logging.getLogger("tarry"), "filters", [exits])
    with orders() as wire:
        assert failed(one_by_one(ValueError, backoff=Fixed(60))(four(), Context())) == ["m1", "m2"]
    assert wire.visibilities() == {"handle-m1": 60, "handle-m2": 60}


# payloads


class HostileOrder(pydantic.BaseModel):
    id: int

    @pydantic.model_validator(mode="after")
    def refuse_one(self) -> "HostileOrder":
        if self.id == 1:
            raise hostile.HostileError
        return self

    __eq__ = __repr__ = __str__ = __bool__ = __len__ = refuse  # type: ignore[assignment]


@pytest.mark.parametrize("settings", [{}, {"concurrency": 3}], ids=["one by one", "threads"])
def test_a_hostile_error_of_a_validator_fails_only_its_own_message(settings: Any) -> None:  # SPEC K2, A2
    @consumer(model=HostileOrder, backoff=Fixed(60), **settings)
    def handler(message: Message[HostileOrder]) -> None:
        assert message.payload is not None

    with orders() as wire:
        response = handler(event(*(record({"id": index}, f"m{index}") for index in range(4))), Context())
    assert failed(response) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}


def test_a_message_whose_validator_raises_a_hostile_error_is_left_out_of_the_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:  # SPEC K2
    @batch_consumer(model=HostileOrder, backoff=Fixed(60))
    def handler(batch: Batch[HostileOrder]) -> None:
        assert [message.payload.id for message in batch] == [0, 2, 3]

    with orders() as wire:
        response = handler(event(*(record({"id": index}, f"m{index}") for index in range(4))), Context())
    assert failed(response) == ["m1"]
    assert wire.visibilities() == {"handle-m1": 60}
