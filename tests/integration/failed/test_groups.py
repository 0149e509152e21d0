"""Groups of dead letters: counts, times, examples, and the conditions that select a group again."""

import json

import pytest

from tarry import ConfigurationError, failed
from tarry.failed.groups import GroupBy
from tarry.testing import Sandbox
from tests.integration.failed.test_retrying import put
from tests.unit.failed.dead_letters import envelope_of

TIMEOUT, DECLINED = "timeout00000", "declined0000"


@pytest.fixture
def queue(sandbox: Sandbox) -> Sandbox:
    """Six timeouts, three declined cards, and one that SQS moved."""
    sandbox.queue("orders", dead_letter="orders-dlq")
    for index in range(9):
        body, declined = json.dumps({"id": index}), index % 3 == 0
        failure = {"type": "app.CardDeclined", "message": "5", "fingerprint": DECLINED, "reason": "fatal"}
        other = {"type": "app.Timeout", "message": "no answer", "fingerprint": TIMEOUT}
        more = {**(failure if declined else other), "failed_at": f"2026-11-21T08:{10 * (index % 5):02}:00Z"}
        put(sandbox, body, envelope_of(body, f"id-{index}", **more))
    put(sandbox)
    return sandbox


def found(by: GroupBy = "fingerprint", **more: object) -> list[failed.Group]:
    with failed.opened("orders-dlq") as inspection:
        return failed.groups(inspection, by, **more)  # type: ignore[arg-type]


def test_a_group_has_a_count_its_times_an_example_and_a_rate(queue: Sandbox) -> None:  # SPEC M2
    largest, second, bare = found()
    assert (largest.value, largest.count, second.value, second.count) == (TIMEOUT, 6, DECLINED, 3)
    assert (largest.first, largest.last, largest.example) == ("2026-11-21T08:00:00Z", "2026-11-21T08:40:00Z", "id-4")
    assert largest.per_minute == pytest.approx(6 / 40)
    assert (bare.value, bare.count, bare.failure, bare.per_minute) == (None, 1, None, None)
    assert all(dead_letter.invisible_seconds == 0 for dead_letter in queue.messages("orders-dlq"))


@pytest.mark.parametrize("by", ["fingerprint", "error", "type", "queue", "reason"])
def test_the_conditions_of_a_group_select_all_of_it_and_no_others(queue: Sandbox, by: GroupBy) -> None:  # SPEC M2
    """Also values that look like JSON, such as the message 5."""
    groups = found(by)
    assert sum(group.count for group in groups) == 10
    for group in groups:
        with failed.opened("orders-dlq") as inspection:
            shown = failed.show(inspection, failed.select(where=group.conditions)).dead_letters
        assert len(shown) == group.count
        assert group.example in {dead_letter.id for dead_letter in shown}


def test_a_selection_by_group_and_time(queue: Sandbox) -> None:  # SPEC M2
    with failed.opened("orders-dlq") as inspection:
        selection = failed.select(group=TIMEOUT, since="2026-11-21T08:10Z", until="2026-11-21T08:40Z")
        shown = failed.show(inspection, selection).dead_letters
    assert sorted(dead_letter.id for dead_letter in shown) == ["id-1", "id-2", "id-7", "id-8"]
    assert [group.count for group in found(selection=selection)] == [4]
    with pytest.raises(ConfigurationError, match="--since 1h is not before --until 2h: no time is between them"):
        failed.select(since="1h", until="2h")
    with pytest.raises(ConfigurationError, match="ids cannot be combined with --where, --group"):
        failed.select(["id-1"], group=TIMEOUT)


def test_a_sample_and_a_stopped_count_have_what_was_received_and_a_second_call_continues(
    sandbox: Sandbox,
) -> None:  # SPEC M2, M5
    sandbox.queue("orders", dead_letter="orders-dlq")
    for index in range(120):
        put(sandbox, "{}", envelope_of("{}", f"id-{index}"))
    sample = found(sample=30)
    assert sum(group.count for group in sample) == 30
    stopped = False
    with failed.opened("orders-dlq", stop=lambda: stopped) as inspection:
        first = sum(group.count for group in failed.groups(inspection, sample=50))
        stopped = True
        assert failed.groups(inspection) == []
        stopped = False
        assert first + sum(group.count for group in failed.groups(inspection)) == 120
        assert 12 <= inspection.requests <= 12 + 10  # for ten each, and a few to know that there are no more
        received = inspection.requests
    assert inspection.requests == received + 12  # and the releases


def test_while_dead_letters_are_held_their_bodies_are_not(sandbox: Sandbox) -> None:  # SPEC M2
    """The memory of a scan does not grow with the size of the messages."""
    import tracemalloc

    sandbox.queue("orders", dead_letter="orders-dlq")
    body = "x" * 200_000
    for index in range(60):
        put(sandbox, body, envelope_of(body, f"id-{index}"))
    with failed.opened("orders-dlq") as inspection:
        failed.groups(inspection, sample=10)
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            failed.groups(inspection)
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert inspection.scanned == len(inspection.leases) == 60
        assert grown < 50 * len(body) / 4


def test_a_retry_by_group_makes_few_requests_and_sends_tens(sandbox: Sandbox) -> None:  # SPEC M6
    """Each receive of ten has two of the group; they are sent once there are ten."""
    sandbox.queue("orders", dead_letter="orders-dlq")
    for index in range(250):
        put(sandbox, "{}", envelope_of("{}", f"id-{index}", fingerprint=f"group{index % 5}"))
    for left in (250, 200, 150, 100, 50):
        with failed.opened("orders-dlq") as inspection:
            group = failed.select(group=f"group{left // 50 - 1}")
            results = failed.retry(inspection, group, failed.Routes(inspection.queue), concurrency=5)
            assert sum(result.outcome == "retried" for result in results) == 50
        receives, sends, releases = left // 10, 5, (left - 50) // 10
        # Besides these, the check of the permission, look-ups, and a few receives of less than ten.
        assert inspection.requests <= receives + 2 * sends + releases + 20
    assert len(sandbox.messages("orders")) == 250
