"""An open circuit of Powertools' circuit breaker defers a message until the circuit may be tried (SPEC K5)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aws_lambda_powertools.utilities.circuit_breaker import circuit_breaker
from aws_lambda_powertools.utilities.circuit_breaker.config import CircuitBreakerConfig
from aws_lambda_powertools.utilities.circuit_breaker.persistence.base import CircuitBreakerPersistenceLayer
from aws_lambda_powertools.utilities.circuit_breaker.persistence.record import CircuitStateRecord
from aws_lambda_powertools.utilities.circuit_breaker.states import CircuitState

from tarry import Batch, MemoryAttempts, Message, Retry, batch_consumer, consumer
from tarry.tools.testing.hosting import give_powertools_the_time
from tests.loglines import field, lines
from tests.records import Context, event, failed, record
from tests.settled import orders, redelivered
from tests.wire import Wire

RECOVERY_SECONDS = 45


class OpenCircuit(CircuitBreakerPersistenceLayer):
    """The store of a circuit that opened at a time."""

    def __init__(self, opened_at: Callable[[], float]) -> None:
        super().__init__()
        self._opened_at = opened_at

    def get_state(self, name: str) -> CircuitStateRecord:
        return CircuitStateRecord(name=name, state=CircuitState.OPEN, opened_at=int(self._opened_at()))

    def try_acquire_half_open(self, name: str, owner: str, opened_at: int) -> bool:
        return False  # another process tries the circuit

    _get_record = _put_record = _update_record = None  # type: ignore[assignment]


@pytest.fixture
def wire() -> Any:
    with orders() as made:
        give_powertools_the_time()
        yield made


def protected(wire: Wire, *, opened_seconds_ago: float) -> Callable[[], None]:
    config = CircuitBreakerConfig(recovery_timeout=RECOVERY_SECONDS)
    store = OpenCircuit(lambda: wire.clock.now - opened_seconds_ago)

    @circuit_breaker(name="bank", persistence_store=store, config=config)
    def pay() -> None:
        raise AssertionError("the circuit is open")

    return pay


def test_each_deferral_is_twice_as_long_and_no_attempt(wire: Wire, caplog: pytest.LogCaptureFixture) -> None:  # SPEC K5
    """The first one ends when the circuit may be tried; the last ones are 900 s. Other messages run."""
    caplog.set_level("INFO")
    pay, handled = protected(wire, opened_seconds_ago=15), list[int]()

    @consumer
    def handler(message: Message) -> None:
        handled.append(message.attempt)
        if message.delivery_id != "other":
            pay()

    assert failed(handler(event(record(), record({}, "other")), Context())) == []
    for _ in range(6):
        handler(event(redelivered(wire)), Context())
    assert handled == [1] * 8
    assert [entry["DelaySeconds"] for entry in wire.sent_entries()] == [30, 60, 120, 240, 480, 900, 900]
    assert {field(line, "reason") for line in lines(caplog, "deferred")} == {"circuit_open"}
    assert lines(caplog, level=30) == []


@pytest.mark.parametrize(
    ("queue", "settings", "receives"),
    [("orders.fifo", {}, (1, 2, 3, 4)), ("orders", {"attempts": MemoryAttempts()}, (1, 2, 6, 7))],
    ids=["fifo", "attempt store"],
)
def test_on_fifo_and_with_an_attempt_store_the_message_waits_in_place_and_each_delay_is_longer(
    queue: str, settings: dict[str, Any], receives: tuple[int, ...], wire: Wire
) -> None:  # SPEC J5, K5
    """With a store, only deferrals make it longer: the message was delivered three times more, without a trace."""
    pay = protected(wire, opened_seconds_ago=0)

    @consumer(**settings)
    def handler(message: Message) -> None:
        assert settings == {} or message.attempt == 1
        pay()

    delays = []
    for count in receives:
        batch = event(record({}, "a", queue, count, "g"), record({}, "b", queue, 1, "g"))
        assert failed(handler(batch, Context())) == ["a", "b"]
        delays.append(wire.visibilities()["handle-a"])
    assert delays == [45, 90, 180, 360]
    assert wire.sent_entries() == []


def test_batches_and_exception_groups_are_deferred_and_an_error_beside_it_is_a_failure(wire: Wire) -> None:
    pay = protected(wire, opened_seconds_ago=RECOVERY_SECONDS * 2)

    @batch_consumer
    def as_a_batch(batch: Batch) -> None:
        batch[0].ack()
        pay()

    async def call(error: Exception | None) -> None:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        pay()

    @consumer
    async def in_a_group(message: Message) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(call(None))
            group.create_task(call(ValueError() if message.delivery_id == "fails" else None))

    @consumer
    def asks_for_a_retry(message: Message) -> None:
        try:
            pay()
        except Exception as error:
            raise Retry(600) from error

    as_a_batch(event(record({}, "done"), record({}, "a")), Context())
    in_a_group(event(record({}, "b")), Context())
    assert [entry["DelaySeconds"] for entry in wire.sent_entries()] == [1, 1]
    assert failed(in_a_group(event(record({}, "fails")), Context())) == ["fails"]
    asks_for_a_retry(event(record({}, "later")), Context())
    assert wire.visibilities()["handle-later"] == 600
