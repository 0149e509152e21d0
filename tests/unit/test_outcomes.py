"""Outcomes, the signals that a handler raises, and a failure, as values."""

import copy
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import tarry
from tarry import BatchError, Defer, Discard, Failure, LocalRetry, Outcome, Reject, Retry, State
from tarry.message.diagnosis import diagnose
from tarry.message.outcomes import until_of
from tarry.testing import message


@pytest.mark.parametrize(
    ("outcome", "state", "delay"),
    [
        (Outcome.ack(), State.COMMITTED, None),
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
    outcome: Outcome, state: State, delay: int | None
) -> None:  # SPEC B6, J5, L1
    assert (outcome.state, outcome.delay) == (state, delay)


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
        *((Defer(0), 1, None), (Defer(30), 30, None)),
        *((kind(reason), None, reason) for kind in (Reject, Discard) for reason in (None, "", "no stock")),
    ],
    ids=repr,
)
def test_a_signal_has_its_public_name_keeps_its_delay_and_reason_and_can_be_copied_and_pickled(
    signal: Any, delay: int | None, reason: str | None
) -> None:  # SPEC B3, B6, J5
    kind = type(signal)
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
    assert (BatchError(index=0).index, "3" in str(BatchError(index=3))) == (0, True)
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
