"""User code that raises wherever it is touched affects only its own message; the other messages are settled.

In each batch, the messages 0 and 3 succeed, 1 meets hostile code, and 2 fails in an ordinary way.
"""

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
from tests.handlers import WAYS
from tests.hostile import ERRORS, HostileText, Touched, caused, odd, refuse
from tests.loglines import Caplog, field, lines
from tests.records import event, record
from tests.settled import settle

Make = Callable[[], BaseException]


class HostileRun:
    """A run of a consumer over four messages: the ids that it reports, and the visibility timeouts."""

    def __init__(self, handler: Consumer[Any], queue: str = "orders", **receives: int) -> None:
        names = [f"m{index}" for index in range(4)]
        records = [record({"id": int(m[1])}, m, queue, receives.get(m, 1), group=m) for m in names]
        self.reported, self.wire = settle(handler, event(*records))
        self.waits = {handle[7:]: seconds for handle, seconds in self.wire.visibilities().items()}
        self.dead = [envelope["failure"] for envelope in self.wire.envelopes()]


def behave(message: Message, make: Make) -> None:
    match message.delivery_id:
        case "m1":
            raise make()
        case "m2":
            raise ValueError("ordinary")


def four(way: str, make: Make = ValueError, **settings: Any) -> Consumer[Any]:
    """Return a consumer whose handler raises what ``make`` returns for m1."""
    return WAYS[way](lambda message: behave(message, make), **{"backoff": Fixed(60), **settings})


SINGLE = ["one by one", "threads", "tasks"]
BATCHES = ["batch", "async batch"]


@pytest.mark.parametrize("name", ERRORS)
def test_a_hostile_error_fails_only_its_own_message(name: str) -> None:  # SPEC A2, A5, B2
    places = [(way, queue) for way in SINGLE for queue in ("orders", "orders.fifo")]
    places += [(way, "orders") for way in BATCHES if name not in ("a Retry", "a Defer")]
    for way, queue in places:
        run = HostileRun(four(way, ERRORS[name]), queue)
        assert {"m2"} <= set(run.reported) <= {"m1", "m2"}, (way, queue)
        assert run.waits["m2"] == 60, (way, queue)
        sent = [dead_letter["MessageBody"] for dead_letter in run.wire.sent_entries()]
        assert sent in ([], ['{"id": 1}']), (way, queue)
        assert way in BATCHES or "m1" in run.reported or name == "a Discard" or sent, (way, queue)


@pytest.mark.parametrize("way", [*SINGLE, "batch"])
def test_a_hostile_error_is_retried_dead_lettered_and_logged_like_any_other(way: str, caplog: Caplog) -> None:
    # SPEC A2, F2, L2
    run = HostileRun(four(way, ERRORS["an error with a cause"], max_attempts=1))
    assert (run.reported, [each["type"] for each in run.dead]) == ([], ["?.HostileError", "ValueError"])
    assert "describing" in run.dead[0]["message"]
    HostileRun(four(way, ERRORS["an error"]))
    [line, _] = lines(caplog, "waiting_retry")
    assert (field(line, "error_type"), "in behave" in field(line, "traceback")) == ("?.HostileError", True)


def a_batch_error() -> BaseException:
    return BatchError.__new__(type(odd(BatchError, "x")), "x")


@pytest.mark.parametrize(
    ("make", "reported"),
    [(ERRORS["an error"], ["m1", "m2", "m3"]), (a_batch_error, ["m0", "m1", "m2", "m3"])],
)
def test_a_hostile_error_of_a_batch_fails_each_message_without_a_verdict(make: Make, reported: list[str]) -> None:
    # SPEC A2, B5
    @batch_consumer(backoff=Fixed(60))
    def handler(batch: Batch) -> None:
        if make is not a_batch_error:
            batch[0].ack()
        raise make()

    run = HostileRun(handler)
    assert (run.reported, set(run.waits.values())) == (reported, {60})


@pytest.mark.parametrize("name", ["a Retry", "a Defer"])
def test_a_signal_whose_delay_cannot_be_read_is_an_ordinary_failure(name: str, caplog: Caplog) -> None:  # SPEC B3, A2
    run = HostileRun(four("one by one", ERRORS[name]))
    assert (run.reported, run.waits) == (["m1", "m2"], {"m1": 60, "m2": 60})
    [line] = lines(caplog, "verdict_unreadable")
    assert field(line, "message_id") == "m1"


@pytest.mark.parametrize("traverse_causes", [False, True])
def test_the_policy_classifies_a_hostile_error_without_touching_it(traverse_causes: bool) -> None:  # SPEC D1, D2
    fatal = RetryPolicy(fatal=KeyError, traverse_causes=traverse_causes)
    assert fatal.reason(hostile.HostileError()) == "error"
    assert fatal.reason(caused(KeyError())) == ("fatal" if traverse_causes else "error")


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_read_without_running_its_own_code(name: str) -> None:  # SPEC A2
    """``error.__cause__ or error.__context__`` would ask for the truth value of the cause."""
    error = ERRORS[name]()
    assert [type_name(each) for each in chain(error)]
    assert everything_in(error, with_suppressed=True)[0] is error
    diagnosis = diagnose(error)
    assert (type(diagnosis.type), type(diagnosis.message)) == (str, str)
    find_signal(error)
    outer = ValueError("outer")
    outer.__cause__ = error
    assert len(list(chain(outer))) == 1 + len(list(chain(error)))
    assert type(text_of(HostileText("secret"), 100)) is str


def raises_touched(*_: Any, **__: Any) -> Any:
    raise Touched


def raises_hostile(*_: Any, **__: Any) -> Any:
    raise hostile.HostileError


def exits(*_: Any, **__: Any) -> Any:
    raise SystemExit(3)


def hostile_step(does: Callable[..., Any]) -> Any:
    def step(failure: Failure, next_step: Callable[[Failure], Outcome]) -> Any:
        return does(failure) if failure.message.delivery_id == "m1" else next_step(failure)

    return step


class HostileOutcome(Outcome):
    __slots__ = ()
    __eq__ = __hash__ = __repr__ = refuse  # type: ignore[assignment]


class HostileBackoff(Fixed):
    """A backoff that fails at attempt 2, but only once the consumer is made, which would refuse it otherwise."""

    __slots__ = ("does",)

    def __init__(self) -> None:
        super().__init__(60)
        object.__setattr__(self, "does", lambda: 60)

    def delay(self, attempt: int, rng: Any = None) -> float:
        return self.does() if attempt == 2 else 60  # type: ignore[no-any-return]


FAILING = [raises_touched, raises_hostile, exits, lambda *_: HostileText("nonsense"), lambda *_: hostile.HostileError()]
failing = pytest.mark.parametrize("does", FAILING)


@failing
@pytest.mark.parametrize("way", SINGLE)
def test_a_hostile_failure_step_affects_only_its_own_message(way: str, does: Any) -> None:  # SPEC E5, A2
    handler = four(way, on_failure=[hostile_step(does), RetryInPlace(), DeadLetter()])
    for queue in ("orders", "orders.fifo"):
        run = HostileRun(handler, queue)
        assert (run.reported, run.waits["m2"]) == (["m1", "m2"], 60), queue


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
    run = HostileRun(four("one by one", on_failure=[hostile_step(outcome), RetryInPlace()]))
    assert run.reported == ["m2"]
    assert [dead_letter["MessageBody"] for dead_letter in run.wire.sent_entries()] == ['{"id": 1}']


@failing
def test_a_hostile_backoff_affects_only_its_own_message(does: Any) -> None:  # SPEC C1, A2
    handler = four("one by one", backoff=(backoff := HostileBackoff()))
    object.__setattr__(backoff, "does", does)
    run = HostileRun(handler, m1=2)
    assert (run.reported, run.waits["m2"]) == (["m1", "m2"], 60)


@failing
@pytest.mark.parametrize("way", [*SINGLE, "batch"])
def test_a_hostile_retry_when_is_ignored_and_logged(way: str, does: Any, caplog: Caplog) -> None:  # SPEC D3
    run = HostileRun(four(way, retry_when=does))
    assert (run.reported, run.waits) == (["m1", "m2"], {"m1": 60, "m2": 60})
    assert len(lines(caplog, "retry_when_failed")) == 2


ODD_ANSWERS = [lambda *_: 1 / 0, lambda *_: 7, lambda *_: {"x": object()}, lambda *_: {HostileText("a"): 1}]


@pytest.mark.parametrize("hook", ["enrich", "redact"])
@pytest.mark.parametrize("does", [*FAILING, *ODD_ANSWERS, lambda *_: {"a": hostile.HostileError()}])
def test_a_failing_hook_of_a_dead_letter_adds_nothing_and_is_logged(hook: str, does: Any, caplog: Caplog) -> None:
    """SPEC F3, F6, A2. It does not prevent dead-lettering."""
    run = HostileRun(four("one by one", max_attempts=1, on_failure=[RetryInPlace(), DeadLetter(**{hook: does})]))
    assert (run.reported, [each["reason"] for each in run.dead]) == ([], ["exhausted", "exhausted"])
    assert not any("extra" in envelope for envelope in run.wire.envelopes())
    assert len(lines(caplog, f"{hook}_failed")) == 2


@pytest.mark.parametrize("does", [*FAILING, None])
def test_a_hostile_redact_or_filter_of_the_log_prevents_no_settlement(
    does: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC L2, A2
    if does is None:
        monkeypatch.setattr(logging.getLogger("tarry"), "filters", [exits])
    run = HostileRun(four("one by one", log=LogOptions(redact=does)))
    assert (run.reported, run.waits) == (["m1", "m2"], {"m1": 60, "m2": 60})


class HostileOrder(pydantic.BaseModel):
    id: int

    @pydantic.model_validator(mode="after")
    def refuse_one(self) -> "HostileOrder":
        if self.id == 1:
            raise hostile.HostileError
        return self

    __eq__ = __repr__ = __str__ = __bool__ = __len__ = refuse  # type: ignore[assignment]


@pytest.mark.parametrize(("make", "settings"), [(consumer, {}), (consumer, {"concurrency": 3}), (batch_consumer, {})])
def test_a_hostile_error_of_a_validator_fails_only_its_own_message(make: Any, settings: Any) -> None:  # SPEC K2, A2
    ran: list[str] = []

    def handler(given: Any) -> None:
        ran.extend(each.id for each in ([given] if make is consumer else given) if each.payload is not None)

    run = HostileRun(make(model=HostileOrder, backoff=Fixed(60), **settings)(handler))
    assert (sorted(ran), run.reported, run.waits) == (["m0", "m2", "m3"], ["m1"], {"m1": 60})
