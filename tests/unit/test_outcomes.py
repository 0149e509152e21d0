"""Outcomes, the signals that a handler raises, and a failure, as values."""

import copy
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import tarry
from tarry import BatchError, Defer, Discard, Failure, LocalRetry, Outcome, Reject, Retry, State
from tarry.decide.decision import Decision
from tarry.message.diagnosis import diagnose
from tarry.message.outcomes import ACK, outcome_of, until_of
from tarry.run.outcomes import AwaitingFacts, Outcomes
from tarry.testing import message


@pytest.mark.parametrize(
    ("outcome", "state", "delay"),
    [
        (Outcome.ack(), State.COMMITTED, None),
        (Outcome.again(), State.IN_FLIGHT, 0),
        (Outcome.again(0.5), State.IN_FLIGHT, 0.5),
        (Outcome.again(timedelta(seconds=0.5)), State.IN_FLIGHT, 1),
        (Outcome.resend(), State.RESENT, None),
        (Outcome.resend("slow", 1.2), State.RESENT, 2),
        (Outcome.retry(), State.WAITING_RETRY, None),
        (Outcome.retry(0), State.WAITING_RETRY, 0),
        (Outcome.retry(1.2), State.WAITING_RETRY, 2),
        (Outcome.retry(timedelta(minutes=2)), State.WAITING_RETRY, 120),
        (Outcome.dead_letter("fatal"), State.DEAD_LETTERED, None),
        (Outcome.discard(), State.DISCARDED, None),
        (Outcome.defer(0), State.DEFERRED, 1),
        (Outcome.defer(0.5), State.DEFERRED, 1),
        (Outcome.defer(30), State.DEFERRED, 30),
        (Outcome.wait(60), State.DEFERRED, 60),
        (Outcome.release(), State.READY, 0),
        (Outcome.unhandled(), State.WAITING_RETRY, None),
    ],
    ids=repr,
)
def test_an_outcome_has_a_state_and_a_delay_in_whole_seconds(
    outcome: Outcome, state: State, delay: float | None
) -> None:  # SPEC B6, I5, J5, L1
    assert (outcome.state, outcome.delay) == (state, delay)


def test_an_outcome_has_a_known_kind_texts_and_a_repr_without_its_body() -> None:  # SPEC L2
    with pytest.raises(ValueError, match=r"an outcome is one of ack, .*, got 'nack'"):
        Outcome("nack")  # type: ignore[arg-type]
    odd: Any = 7
    for name in ("reason", "queue"):
        with pytest.raises(TypeError, match=f"{name} of an outcome is a text or None, got a value of type int"):
            Outcome.dead_letter(**{"reason": "fatal", name: odd})
    assert (Outcome.dead_letter("fatal", "").queue, Outcome.dead_letter("fatal", "q").queue) == (None, "q")
    resent = Outcome.resend("q", 5, {"n": 1}, body="secret", attributes={})
    assert (resent.body, resent.attributes) == ("secret", {})
    assert repr(resent) == "Outcome(kind='resend', delay=5, reason=None, queue='q', note={'n': 1})"


class Later(Retry):
    delay = 30


class Unavailable(Reject):
    reason = "unavailable"


class Old(Discard):
    reason = "old"


class Soon(Defer):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (ACK, Outcome.ack()), (ValueError(), None), (Retry(5), Outcome.retry(5)), (Later(), Outcome.retry(30)),
        (Later(5), Outcome.retry(5)), (Soon(), Outcome.defer(1)), (Reject(), Outcome.dead_letter("rejected")),
        (Reject(""), Outcome.dead_letter("rejected")), (Unavailable(), Outcome.dead_letter("unavailable")),
        (Reject("x" * 1_001), Outcome.dead_letter("x" * 1_000)), (Unavailable("gone"), Outcome.dead_letter("gone")),
        (Discard(""), Outcome.discard()), (Old(), Outcome.discard("old")), (Old("odd"), Outcome.discard("odd")),
    ],
    ids=repr,
)  # fmt: skip
def test_a_verdict_asks_for_an_outcome_and_an_error_for_none(verdict: Any, outcome: Outcome | None) -> None:
    assert outcome_of(verdict) == outcome  # SPEC B2, B3
    if isinstance(verdict, Soon):
        assert verdict.delay == 1


def test_a_note_has_whole_numbers_from_0_to_1000_and_texts_of_at_most_256_characters() -> None:  # DESIGN 3
    note = {"none": 0, "most": 1_000, "empty": "", "long": "x" * 256}
    assert Outcome.resend("slow", note=note).note == note
    for odd in ({"tries": -1}, {"tries": 1_001}, {"tries": True}, {"why": "x" * 257}, {"why": 1.5}, {1: 1}):
        with pytest.raises(ValueError, match="a note is a name with a whole number from 0 to 1000"):
            Outcome.resend("slow", note=odd)  # type: ignore[arg-type]


def test_outcomes_are_frozen_and_equal_by_value_and_refuse_an_invalid_delay() -> None:  # SPEC B2, B6
    assert Outcome.retry(60) == Outcome.retry(timedelta(minutes=1))
    assert Outcome.retry(0) != Outcome.retry()
    assert Outcome.dead_letter("fatal") != Outcome.dead_letter("fatal", "graveyard")
    assert len({Outcome.ack(), Outcome.ack()}) == 1
    with pytest.raises(AttributeError):
        Outcome.ack().kind = "retry"
    for make in (Outcome.retry, Outcome.defer):
        for delay in (-1, float("nan"), True, "60"):
            with pytest.raises(ValueError, match="delay"):
                make(delay)


@pytest.mark.parametrize(
    ("signal", "delay", "reason"),
    [
        *((Retry(), None, None), (Retry(0), 0, None), (Retry(1.5), 2, None), (Retry(timedelta(minutes=1)), 60, None)),
        *((Defer(0), 1, None), (Defer(30), 30, None), (Defer(delay=30), 30, None), (Retry(None), None, None)),
        *((Retry(delay=5), 5, None), (Reject(reason="no"), None, "no"), (Discard(reason="no"), None, "no")),
        *((kind(reason), None, reason) for kind in (Reject, Discard) for reason in (None, "", "no stock")),
    ],
    ids=repr,
)
def test_a_signal_has_its_public_name_keeps_its_delay_and_reason_and_can_be_copied_and_pickled(
    signal: Any, delay: int | None, reason: str | None
) -> None:  # SPEC B3, B6, J5
    kind = type(signal)
    given = reason if kind in (Reject, Discard) else delay
    assert len(signal.args) == (given is not None)
    assert (kind.__module__, getattr(tarry, kind.__qualname__)) == ("tarry", kind)
    if kind in (Reject, Discard):
        assert (signal.reason, str(signal)) == (reason, reason or "")
    else:
        assert signal.delay == delay
    for other in (copy.copy(signal), pickle.loads(pickle.dumps(signal))):
        assert (type(other), vars(other)) == (kind, vars(signal))


def test_a_batch_error_names_one_message_and_has_the_text_of_the_user_or_a_default() -> None:  # SPEC B3, B5
    arguments: Any
    for arguments in ({}, {"index": 1, "message": object()}):
        with pytest.raises(ValueError, match="index"):
            BatchError(**arguments)
    assert (BatchError.__module__, BatchError.__qualname__) == ("tarry", "BatchError")
    assert (BatchError(index=0).index, str(BatchError(index=3))) == (0, "message 3 of the batch failed")
    assert str(BatchError(message=message())) == "this message failed"
    assert str(BatchError("the third line", index=3)) == "the third line"


def test_a_failure_that_is_made_by_hand_to_test_a_step_is_diagnosed() -> None:  # SPEC E3
    failure = Failure(message(attempt=3), ValueError("no stock"), "error")
    assert failure.diagnosis is not None
    assert (failure.diagnosis.type, failure.diagnosis.message, failure.attempt) == ("ValueError", "no stock", 3)
    assert LocalRetry(1, 5).handle(failure, lambda _: Outcome.ack()).delay == 5
    assert Failure(message(), None, "retry").diagnosis is None
    given = diagnose(KeyError("sku"))
    assert Failure(message(), ValueError("no stock"), "error", diagnosis=given).diagnosis is given


def test_only_a_delay_that_is_a_moment_ends_at_that_moment() -> None:  # SPEC B6, C11
    moment = datetime.now(UTC) + timedelta(seconds=100)
    assert until_of(Retry(moment)) == moment.timestamp()
    assert [until_of(Retry(delay)) for delay in (100, 1.5, timedelta(seconds=100), None)] == [None] * 4


# messages that wait for the look-up of their queue


class LookUpsOfOrders:
    """The look-ups of one queue, which end when the test says so, in an invocation whose time the test sets."""

    def __init__(self, *, may_wait: bool = True, left: float = 100) -> None:
        self.now, self.left, self.is_known = 0.0, left, False
        self.begun: list[Callable[[], None]] = []
        """The function to call at the end of each look-up that was begun."""
        self.waits: list[float] = []
        self.wakes = 0
        self.awaiting = AwaitingFacts(may_wait=may_wait)
        self.awaiting.wake = self._wake
        event = SimpleNamespace(wait=self.waits.append, set=lambda: None)
        threads = SimpleNamespace(event=lambda: event)
        invocation = SimpleNamespace(
            elapsed=lambda: self.now, time_left=lambda: self.left, world=SimpleNamespace(threads=threads)
        )
        self.delivery: Any = SimpleNamespace(source=SimpleNamespace(text="orders"), invocation=invocation)
        self.settlement: Any = SimpleNamespace(
            lookups=SimpleNamespace(knows=lambda _: self.is_known, prepare=self._begin), fetch=self._begin
        )

    def _wake(self) -> None:
        self.wakes += 1

    def _begin(self, _: object, then: Callable[[], None]) -> bool:
        self.begun.append(then)
        return not self.is_known

    def knows(self) -> bool:
        return self.awaiting.is_known(self.delivery, self.settlement)


@pytest.mark.parametrize(
    ("may_wait", "left", "waits"),
    [(True, 100, [1]), (True, 20, [1]), (True, 10, [0.5]), (True, -1, [0]), (False, 100, [])],
)
def test_the_first_message_of_an_unknown_queue_waits_for_its_look_up_up_to_a_second_and_no_other_does(
    may_wait: bool, left: float, waits: list[float]
) -> None:  # SPEC I2
    orders = LookUpsOfOrders(may_wait=may_wait, left=left)
    assert [orders.knows(), orders.knows()] == [False, False]
    assert (len(orders.begun), orders.waits) == (1, waits)
    orders.begun[0]()
    assert (orders.knows(), orders.wakes, len(orders.begun)) == (True, 1, 1)
    orders = LookUpsOfOrders()
    orders.is_known = True
    assert (orders.knows(), orders.begun, orders.waits) == (True, [], [])


def test_a_look_up_that_has_failed_is_begun_again_before_its_failure_is_forgotten() -> None:  # SPEC F1
    """A failure is kept for 30 seconds."""
    orders = LookUpsOfOrders()
    orders.knows()
    orders.now = 10
    orders.begun[0]()
    for now, begun in ((24.9, 1), (25, 2)):
        orders.now = now
        assert (orders.knows(), len(orders.begun)) == (begun == 1, begun)


@pytest.mark.parametrize("is_known", [False, True])
def test_the_first_message_waits_for_a_look_up_that_was_begun_before_it_failed(is_known: bool) -> None:  # SPEC C8
    orders = LookUpsOfOrders()
    orders.is_known = is_known
    fetching = orders.awaiting.fetch([orders.delivery, orders.delivery], orders.settlement)
    assert (len(fetching), len(orders.begun)) == (0 if is_known else 1, 1)
    orders.is_known = False
    assert not orders.knows()
    assert (len(orders.begun), orders.waits) == (2 if is_known else 1, [1])


# the outcomes of a batch


class SettlementOfOrders:
    """A settlement that notes what it is asked to do; every message needs the size limit of one target."""

    has_slice = False

    def __init__(self) -> None:
        self.added: dict[str, bool] = {}
        """The messages that were added, and whether each may be settled early."""
        self.completed: dict[str, bool] = {}
        self.looked_up: list[str] = []
        self.requests: list[str] = []
        self.executor = SimpleNamespace(look_up=self.looked_up.append)

    def add(self, decision: Any, *, early: bool, may_look_up: bool = True) -> None:
        self.added[decision.delivery.delivery_id] = early

    def needed_by(self, _: Any) -> str:
        return "orders-dlq"

    def go_on(self, delivery: Any, *, early: bool) -> None:
        self.completed[delivery.delivery_id] = early

    def send_now(self, decision: Any) -> str:
        return f"send of {decision.delivery.delivery_id}"

    def settle_full_requests(self) -> None:
        self.requests.append("full")

    def stop(self) -> None:
        self.requests.append("stop")

    def owed_seconds(self) -> float:
        return 3


class BatchOfOrders:
    """The outcomes of a batch of messages m0, m1, ..., each with a claim."""

    def __init__(self, count: int = 3, *, is_fifo: bool = False, may_block: bool = True) -> None:
        self.deliveries: dict[str, Any] = {}
        for index in range(count):
            delivery_id = f"m{index}"
            claim = SimpleNamespace(back_at=None, end=lambda outcome, name=delivery_id: self.ended.append(name))
            self.deliveries[delivery_id] = SimpleNamespace(
                delivery_id=delivery_id,
                source=SimpleNamespace(is_fifo=is_fifo),
                group="g",
                claim=claim,
                is_done=False,
                invocation=SimpleNamespace(acks=None),
            )
        self.claims = {name: delivery.claim for name, delivery in self.deliveries.items()}
        self.ended: list[str] = []
        """The messages whose claims were ended, one by one."""
        self.pending: dict[str, Any] = {name: {} for name in self.deliveries}
        self.settlement: Any = SettlementOfOrders()
        invocation: Any = SimpleNamespace(spans=None, deliveries=self.deliveries)
        handling: Any = None
        awaiting = AwaitingFacts(may_wait=True)
        self.outcomes = Outcomes(handling, invocation, self.pending, awaiting, may_block)
        self.outcomes.made_settlement = self.settlement

    def note(self, name: str, outcome: Outcome, *, early: bool = False) -> None:
        self.outcomes.note(Decision(self.deliveries[name], outcome, 1_000), early=early)


@pytest.mark.parametrize(
    ("outcome", "back_at"),
    [
        *((Outcome.retry(60), 1_060), (Outcome.retry(), 1_000), (Outcome.defer(5), 1_005)),
        *((Outcome.resend("slow", 30), 1_030), (Outcome.ack(), None), (Outcome.unhandled(), None)),
    ],
    ids=repr,
)
def test_a_claim_ends_before_its_outcome_is_carried_out_and_knows_when_the_message_comes_back(
    outcome: Outcome, back_at: float | None
) -> None:  # SPEC K4
    batch, then = BatchOfOrders(), list[Any]()
    batch.outcomes.ending = lambda *ending: then.append(ending)
    batch.note("m0", outcome)
    assert (batch.claims["m0"].back_at, batch.settlement.added, len(batch.pending)) == (back_at, {}, 3)
    [(claim, ended_with, go_on)] = then
    assert (claim, ended_with, batch.deliveries["m0"].claim) == (batch.claims["m0"], outcome, None)
    go_on(None)
    is_done = outcome.kind == "ack"
    assert ("m0" in batch.settlement.added, "m0" in batch.pending) == (not is_done, not is_done)


def test_claims_are_ended_one_by_one_until_they_are_collected_and_each_once() -> None:  # SPEC K4
    batch, together = BatchOfOrders(5), list[list[Any]]()
    batch.outcomes.collect_claims()  # does nothing: no function ends several
    batch.note("m0", Outcome.ack())
    assert (batch.ended, len(batch.pending)) == (["m0"], 4)
    batch.outcomes.end_all = lambda ends: together.append([claim for claim, _ in ends])
    for _ in range(2):
        batch.outcomes.collect_claims()
    batch.note("m1", Outcome.ack())
    batch.outcomes.end_claim(batch.deliveries["m2"])
    batch.outcomes.settle_here()
    batch.note("m3", Outcome.retry(5))
    assert (together, len(batch.pending)) == ([], 4)
    for _ in range(2):
        batch.outcomes.end_claims()
    assert together == [[batch.claims[name] for name in ("m1", "m2", "m3")]]
    assert (batch.ended, len(batch.pending), [*batch.settlement.added]) == (["m0"], 3, ["m3"])


def test_while_handlers_run_elsewhere_requests_are_made_in_the_background_one_for_each_target() -> None:  # SPEC I1
    batch, background = BatchOfOrders(4, may_block=False), list[Any]()
    batch.outcomes.in_background = lambda *request: background.append(request)
    for name in ("m0", "m1"):
        batch.note(name, Outcome.retry(5), early=True)
    assert batch.settlement.added == {"m0": True, "m1": True}
    [(look_up, then)] = background
    look_up()
    assert (batch.settlement.looked_up, batch.settlement.completed) == (["orders-dlq"], {})
    then(None)
    assert batch.settlement.completed == {"m0": True, "m1": True}
    batch.settlement.has_slice = True
    batch.note("m2", Outcome.retry(5), early=True)
    assert [request() for request, _ in background[1:]] == [None, None]
    assert batch.settlement.requests == ["full"]
    batch.note("m3", Outcome.retry(5), early=True)
    assert batch.settlement.added["m3"] is False  # no other message runs
    batch.outcomes.settle_here()
    batch.note("m3", Outcome.retry(5))
    assert (batch.outcomes.may_block, batch.settlement.requests) == (True, ["full", "full"])


@pytest.mark.parametrize(("sent", "stops"), [(True, False), (False, True), (OSError(), True)])
def test_a_fifo_group_waits_for_the_send_of_a_copy_and_stops_if_it_fails(sent: object, stops: bool) -> None:  # SPEC H1
    batch, background, settled = BatchOfOrders(is_fifo=True), list[Any](), list[Any]()
    batch.outcomes.in_background = lambda *request: background.append(request)
    batch.outcomes.settled = lambda delivery, rerun: settled.append((delivery.delivery_id, rerun))
    batch.outcomes.claim_ended = lambda delivery: settled.append(delivery.delivery_id)
    batch.note("m0", Outcome.dead_letter("fatal"))
    assert (batch.outcomes.is_under_way("m0"), settled, batch.settlement.added) == (True, [], {})
    [(send, then)] = background
    assert send() == "send of m0"
    then(sent)
    assert (batch.outcomes.is_under_way("m0"), settled) == (False, [("m0", None)])
    assert batch.outcomes.stops(batch.deliveries["m1"]) is stops
    batch.note("m1", Outcome.ack())
    assert settled[1:] == ["m1"]  # whose claim has ended
    batch.note("m2", Outcome.retry(5))
    assert batch.settlement.added == {"m2": False}
    assert settled[2:] == ["m2"]
    assert (batch.outcomes.is_under_way("m2"), batch.outcomes.stops(batch.deliveries["m2"])) == (False, True)


def test_when_an_invocation_ends_requests_stop_and_what_a_request_has_settled_meanwhile_is_done() -> None:  # SPEC G6
    batch = BatchOfOrders()
    assert (batch.outcomes.owed_seconds(), batch.outcomes.others_run) == (3, True)
    batch.deliveries["m1"].is_done = True
    batch.outcomes.stop()
    assert ([*batch.pending], batch.settlement.requests) == (["m0", "m2"], ["stop"])
    batch.outcomes.made_settlement = None
    batch.outcomes.stop()
    assert batch.outcomes.owed_seconds() == 0
    for name in batch.deliveries:
        batch.outcomes.note_open(batch.deliveries[name])
    assert not batch.outcomes.others_run
