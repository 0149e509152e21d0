"""Retrying some dead letters first, at a rate, and with a limit for those that come back."""

import json
from collections import Counter

import pytest

from tarry import ConfigurationError, failed
from tarry.failed import Canary, CanaryReturned, Limits, Result, Routes, TooManyReturned
from tarry.testing import Sandbox
from tests.integration.failed.test_retrying import Gateway, dead_lettered, places, put
from tests.unit.failed.dead_letters import envelope_of


@pytest.fixture
def gateway(sandbox: Sandbox) -> Gateway:
    gateway = Gateway()
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.connect(gateway.handler, "orders")
    return gateway


def retry(
    results: list[Result], canary: Canary | None = None, limits: Limits | None = None, concurrency: int = 1
) -> failed.Inspection:
    """Retry all dead letters, adding the result of each to ``results``."""
    with failed.opened("orders-dlq") as inspection:
        everything, routes = failed.select(everything=True), Routes(inspection.queue)
        results.extend(
            failed.retry(inspection, everything, routes, canary=canary, limits=limits, concurrency=concurrency)
        )
    return inspection


def test_canaries_that_come_back_stop_the_run(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    dead_lettered(sandbox, 30)
    results: list[Result] = []
    waits: list[float] = []
    with pytest.raises(CanaryReturned) as raised:
        retry(results, Canary(3, watching=lambda _, total: waits.append(total)))
    error = raised.value
    assert 1 <= len(error.ids) <= error.sent == 3
    assert str(error).startswith(f"{len(error.ids)} of 3 canaries came back to orders-dlq: no others were retried; ")
    assert str(error).endswith(f"; the failure record of {error.ids[0]} has the new error")
    assert {result.id for result in results if result.outcome == "retried"} >= set(error.ids)
    assert len(results) == 3
    assert waits[0] == pytest.approx(70, abs=1)  # 10 s between the attempts, and the visibility timeout
    sandbox.run()
    assert places(sandbox) == (0, 30)


def test_if_no_canary_comes_back_all_others_are_retried(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M3
    dead_lettered(sandbox, 30)
    gateway.is_down = False
    results: list[Result] = []
    began_at = sandbox.elapsed
    retry(results, Canary(3, within=300))
    assert 300 <= sandbox.elapsed - began_at < 330
    assert Counter(result.outcome for result in results) == {"retried": 30}
    sandbox.run()
    assert sorted(gateway.done) == list(range(30))
    assert places(sandbox) == (0, 0)


def test_a_canary_that_comes_back_without_a_failure_record_is_seen_by_its_id(sandbox: Sandbox) -> None:  # SPEC M3
    """SQS moves it, because its function never ends."""
    sandbox.queue("orders", dead_letter="orders-dlq", max_receive_count=1, visibility_timeout=6)
    for index in range(5):
        body = json.dumps({"id": index})
        put(sandbox, body, envelope_of(body, f"id-{index}"))

    def crash(event: object, _: object) -> None:
        raise SystemExit

    sandbox.connect(crash, "orders", timeout=3)
    with pytest.raises(CanaryReturned):
        retry([], Canary(1, within=60))


def test_canaries_are_refused_where_they_could_not_be_seen(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M3
    """On FIFO they are behind others, and SQS limits the messages in flight. Nothing is sent then."""
    sandbox.queue("orders", dead_letter="orders-dlq")
    sandbox.queue("jobs.fifo", dead_letter="jobs-dlq.fifo")
    for index in range(40):
        put(sandbox, "{}", envelope_of("{}", f"id-{index}"))
    monkeypatch.setattr("tarry.failed.inspection.MAX_IN_FLIGHT", 30)
    with pytest.raises(ConfigurationError, match="among about 40 dead letters, since at most 30 can be in flight"):
        retry([], Canary(3))
    with failed.opened("jobs-dlq.fifo") as inspection, pytest.raises(ConfigurationError, match="on FIFO it is behind"):
        list(failed.retry(inspection, failed.select(everything=True), Routes(inspection.queue), canary=Canary(1)))
    assert len(sandbox.messages("orders-dlq")) == 40
    with pytest.raises(ConfigurationError, match="1 or more"):
        Canary(0)
    with pytest.raises(ConfigurationError, match="less than 12 h"):
        Canary(1, within=43_200)


def test_the_time_to_watch_is_that_of_the_slowest_canary_unless_it_is_half_a_day(sandbox: Sandbox) -> None:  # SPEC M3
    sandbox.queue("orders", dead_letter="orders-dlq", visibility_timeout=30)
    put(sandbox, "{}", envelope_of("{}", "quick", first_failed_at="2026-11-21T08:21:00Z"))
    put(sandbox, "{}", envelope_of("{}", "slow", first_failed_at="2026-11-20T08:21:00Z"))
    with pytest.raises(ConfigurationError, match=r"retried for 24 h, .*\(--within 30m\)"):
        retry([], Canary(2))
    assert places(sandbox) == (0, 2)


def test_a_rate_spreads_the_sends(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M6
    dead_lettered(sandbox, 30)
    gateway.is_down = False
    results: list[Result] = []
    began_at = sandbox.elapsed
    retry(results, limits=Limits(rate=2), concurrency=3)
    assert len(results) == 30
    assert 14 <= sandbox.elapsed - began_at <= 20  # two a second, and the polls at the end


def test_a_retry_stops_when_too_many_come_back(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M6
    dead_lettered(sandbox, 60)
    results: list[Result] = []
    with pytest.raises(TooManyReturned) as raised:
        retry(results, limits=Limits(rate=0.5, max_return=0.05))
    error = raised.value
    assert error.returned > 0.05 * error.retried
    assert error.retried == len(results) < 60
    sandbox.run()
    assert places(sandbox) == (0, 60)


def test_limits_that_make_no_sense_are_refused() -> None:  # SPEC M6
    for settings in ({"rate": 0}, {"rate": -1}, {"max_return": 1.1}, {"max_return": -0.1}):
        with pytest.raises(ConfigurationError):
            Limits(**settings)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_two_dead_letters_with_one_id_are_sent_once(sandbox: Sandbox, concurrency: int) -> None:  # SPEC M3
    sandbox.queue("orders", dead_letter="orders-dlq")
    for index in range(60):
        put(sandbox, "{}", envelope_of("{}", f"id-{index % 30}"))
    results: list[Result] = []
    inspection = retry(results, concurrency=concurrency)
    assert Counter(result.id for result in results) == {f"id-{index}": 1 for index in range(30)}
    assert places(sandbox) == (30, 30)
    assert inspection.handled.repeated == 30
