"""A `Failure`, as failure steps see it."""

from datetime import UTC, datetime, timedelta

from tarry import Failure, Retry
from tarry.message.diagnosis import diagnose
from tarry.message.outcomes import until_of
from tarry.testing import message


def test_a_failure_that_is_made_by_hand_to_test_a_step_is_diagnosed() -> None:  # SPEC E3
    failure = Failure(message(attempt=3), ValueError("no stock"), "error")
    assert failure.diagnosis is not None
    assert (failure.diagnosis.type, failure.diagnosis.message, failure.attempt) == ("ValueError", "no stock", 3)
    assert Failure(message(), None, "retry").diagnosis is None
    given = diagnose(KeyError("sku"))
    assert Failure(message(), ValueError("no stock"), "error", diagnosis=given).diagnosis is given


def test_only_a_delay_that_is_a_moment_ends_at_that_moment() -> None:  # SPEC B6, C11
    moment = datetime.now(UTC) + timedelta(seconds=100)
    assert until_of(Retry(moment)) == moment.timestamp()
    assert [until_of(Retry(delay)) for delay in (100, 1.5, timedelta(seconds=100), None)] == [None] * 4
