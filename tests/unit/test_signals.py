"""Signals: exceptions that a handler raises as its verdict."""

import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

import tarry
from tarry import BatchError, Defer, Discard, Reject, Retry


@pytest.mark.parametrize("name", ["Retry", "Reject", "Discard", "Defer", "BatchError"])
def test_a_signal_has_its_public_name(name: str) -> None:  # SPEC B3
    kind = getattr(tarry, name)
    assert (kind.__module__, kind.__qualname__) == ("tarry", name)


@pytest.mark.parametrize(
    ("signal", "delay"),
    [
        (Retry(), None),
        (Retry(0), 0),
        (Retry(1.5), 2),
        (Retry(timedelta(minutes=1)), 60),
        (Defer(0), 1),
        (Defer(30), 30),
    ],
    ids=repr,
)
def test_a_signal_keeps_its_delay_in_whole_seconds(signal: Any, delay: int | None) -> None:  # SPEC B3, B6, J5
    assert signal.delay == delay


@pytest.mark.parametrize("kind", [Reject, Discard])
@pytest.mark.parametrize("reason", [None, "", "no such customer"])
def test_a_signal_keeps_its_reason(kind: Any, reason: str | None) -> None:  # SPEC B3
    assert kind(reason).reason == reason
    assert str(kind(reason)) == (reason or "")


@pytest.mark.parametrize("signal", [Retry(60), Retry(), Reject("x"), Discard("x"), Defer(30)], ids=repr)
def test_a_signal_can_be_copied_and_pickled(signal: Any) -> None:  # SPEC B3
    for other in (copy.copy(signal), pickle.loads(pickle.dumps(signal))):
        assert type(other) is type(signal)
        assert vars(other) == vars(signal)


@pytest.mark.parametrize("arguments", [{}, {"index": 1, "message": object()}], ids=["neither", "both"])
def test_a_batch_error_names_one_message(arguments: Any) -> None:  # SPEC B5
    with pytest.raises(ValueError, match="index"):
        BatchError(**arguments)


def test_a_batch_error_has_the_text_of_the_user_or_a_default() -> None:  # SPEC B5
    assert "3" in str(BatchError(index=3))
    assert str(BatchError("the third line", index=3)) == "the third line"
    assert BatchError(index=0).index == 0
