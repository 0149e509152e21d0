"""The inspection of a dead-letter queue, which leaves the queue unchanged; groups of what it finds."""

import contextlib
import json
import tracemalloc
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry import ConfigurationError, failed
from tarry.failed.groups import GroupBy
from tarry.testing import Realism, Sandbox
from tests.integration.failed.sandboxed import Gateway, dead_lettered, fill, held, put, retried, there
from tests.unit.failed.dead_letters import envelope_of


@pytest.fixture
def fifo(sandbox: Sandbox) -> str:
    """The dead-letter queue of a FIFO queue with 25 dead letters in one group."""
    Gateway(sandbox, "orders.fifo")
    dead_lettered(sandbox, 25, "orders.fifo", group_id="a")
    return "orders-dlq.fifo"


def test_an_inspection_leaves_the_queue_unchanged(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M2, M5
    """Also after an exception. Dead letters stay in flight until then; if it is killed, they are visible soon."""
    ids = dead_lettered(sandbox, 25)
    with failed.opened("orders-dlq", keepalive=5) as inspection:
        first = failed.show(inspection, failed.select())
        assert max(dead_letter.invisible_seconds for dead_letter in sandbox.messages("orders-dlq")) <= 15
        for _ in range(5):
            assert held(sandbox) == 25
            sandbox.sleep(30)
    assert held(sandbox) == 0
    with contextlib.suppress(KeyboardInterrupt), failed.opened("orders-dlq") as inspection:
        second = failed.show(inspection, failed.select())
        raise KeyboardInterrupt
    assert held(sandbox) == 0
    assert sorted(dead_letter.id for dead_letter in first.dead_letters) == sorted(ids)
    assert [*map(failed.as_json, first.dead_letters)] == [*map(failed.as_json, second.dead_letters)]


@pytest.mark.parametrize("most", [1, 7, 15, 29])
def test_without_conditions_no_more_are_received_than_are_shown(
    sandbox: Sandbox, most: int
) -> None:  # SPEC M2, PLATFORM 22
    fill(sandbox, 30)
    with failed.opened("orders-dlq") as inspection:
        assert len(failed.show(inspection, failed.select(), most).dead_letters) == most
        assert inspection.scanned == held(sandbox) == most
        assert failed.scanned(inspection) == f"scanned {most} of about 30"


def test_each_dead_letter_is_shown_once_whatever_sqs_does() -> None:  # SPEC M2
    with Sandbox(seed=3, realism=Realism(reorder=True, partial=True, duplicate=0.3)) as sandbox:
        Gateway(sandbox)
        ids = dead_lettered(sandbox, 40)
        with failed.opened("orders-dlq") as inspection:
            seen = [dead_letter.id for polled in inspection.polls() for dead_letter in polled]
            assert set(seen) == set(ids)
            assert sorted(seen) == there(sandbox)  # a message redelivered after its deletion is dead-lettered twice


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_empty_polls_of_all_threads_end_a_scan(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """A scan ends without more polls once two threads found the queue empty; on FIFO, once no thread works any more."""
    Gateway(sandbox, f"orders{suffix}")
    dead_lettered(sandbox, 25, f"orders{suffix}", group_id="a" if suffix else None)
    sandbox.queue(f"other{suffix}")
    receives: list[int] = []
    with failed.opened(f"orders-dlq{suffix}") as inspection:
        poll = inspection.poll

        def counted(most: int, *others: Any) -> list[failed.DeadLetterMessage]:
            found = poll(most, *others)
            receives.append(len(found))
            return found

        monkeypatch.setattr(inspection, "poll", counted)
        results = retried(inspection, to=f"other{suffix}", concurrency=3)
        assert sum(result.outcome == "retried" for result in results) == sum(receives) == 25
    assert receives.count(0) <= 3


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "denied"])
def test_an_inspection_that_is_stopped_or_fails_releases_what_it_received(
    sandbox: Sandbox, is_stopped: bool
) -> None:  # SPEC M5
    fill(sandbox, 30)
    stops: list[bool] = []
    with failed.opened("orders-dlq", stop=lambda: bool(stops)) as inspection:
        polls = inspection.polls()
        assert len(next(polls)) == inspection.scanned == 10
        if is_stopped:
            stops.append(True)
            assert list(polls) == []
        else:
            sandbox.faults.add("denied", operation="ReceiveMessage", times=1)
            with pytest.raises(ClientError):
                next(polls)
    assert held(sandbox) == 0


def test_the_beginning_of_an_id_is_enough_if_it_is_unique(sandbox: Sandbox, gateway: Gateway) -> None:  # SPEC M1
    ids = dead_lettered(sandbox, 25)
    with failed.opened("orders-dlq") as inspection:
        shown = failed.show(inspection, failed.select([ids[13][:12], ids[2], "unknown"]))
        assert [dead_letter.id for dead_letter in shown.dead_letters] == [ids[13], ids[2]]
        assert (shown.missing, inspection.scanned) == (("unknown",), 25)
        assert held(sandbox) == 2  # the others are released at once
    [(first, _)] = Counter(each[0] for each in ids).most_common(1)
    with failed.opened("orders-dlq") as inspection, pytest.raises(failed.AmbiguousId) as caught:
        list(failed.remove(inspection, failed.select([first])))
    both = {each.id: {each.id[0], each.delivery_id[0]} for each in sandbox.messages("orders-dlq")}
    assert sorted(caught.value.matches) == sorted(each for each, first_ones in both.items() if first in first_ones)
    assert (held(sandbox), len(there(sandbox))) == (0, 25)
    with pytest.raises(ConfigurationError, match="an id is empty"):
        failed.select([""])


def test_dead_letters_that_cannot_be_released_are_counted_and_time_out(sandbox: Sandbox) -> None:  # SPEC M5
    fill(sandbox, 3)
    with failed.opened("orders-dlq") as inspection:
        failed.show(inspection, failed.select())
        sandbox.faults.add("denied", operation="ChangeMessageVisibilityBatch", times=None)
    assert inspection.leases.not_released == 3
    sandbox.advance(15)
    assert held(sandbox) == 0


def test_on_fifo_only_the_first_ten_of_a_group_are_shown(sandbox: Sandbox, fifo: str) -> None:  # PLATFORM 14, 22
    with failed.opened(fifo) as inspection:
        shown = failed.show(inspection, failed.select())
        assert [dead_letter.body for dead_letter in shown.dead_letters] == [f'{{"id":{index}}}' for index in range(10)]
        assert failed.scanned(inspection) == "scanned 10 of about 25"
    assert held(sandbox, fifo) == 0


def test_one_at_a_time_no_more_are_received_than_asked_for_and_a_fifo_group_continues(
    sandbox: Sandbox, fifo: str
) -> None:  # SPEC M5, PLATFORM 14, 22
    fill(sandbox, 4)
    stops: list[bool] = []
    with failed.opened("orders-dlq") as inspection, failed.opened(fifo, stop=lambda: bool(stops)) as in_order:
        received, of_group = inspection.dead_letters(), in_order.dead_letters()
        next(received)
        next(received)
        assert held(sandbox) == 2
        assert [next(of_group).body for _ in range(3)] == [f'{{"id":{index}}}' for index in range(3)]
        stops.append(True)
        assert list(of_group) == []
    assert (held(sandbox), held(sandbox, fifo)) == (0, 0)


def test_a_queue_is_found_by_name_url_and_arn(sandbox: Sandbox) -> None:  # SPEC M1
    sandbox.queue("worse")
    sandbox.queue("orders-dlq", dead_letter="worse", max_receive_count=3)
    sandbox.queue("orders", dead_letter="orders-dlq")
    for name in ("orders-dlq", sandbox.sqs.url("orders-dlq"), sandbox.sqs.arn("orders-dlq")):
        found = failed.find(name)
        assert (found.name, found.moves_to, found.moves_after) == ("orders-dlq", "worse", 3)
        assert [source.name for source in found.sources or ()] == ["orders"]
    with pytest.raises(failed.UnknownQueue, match="'nope' does not exist; existing queues: worse, orders-dlq, orders"):
        failed.find("nope")


@pytest.mark.parametrize(("limit", "own", "found"), [(35, None, 35), (120, 30, 30)])
def test_an_inspection_ends_at_the_in_flight_limit_of_sqs_or_before_it(
    sandbox: Sandbox, limit: int, own: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M2, PLATFORM 6
    """It leaves some of the limit to other consumers."""
    if own:
        monkeypatch.setattr("tarry.failed.inspection.MAX_IN_FLIGHT", own)
    sandbox.sqs.in_flight_limit = limit
    fill(sandbox, 50)
    with failed.opened("orders-dlq") as inspection:
        assert len(failed.show(inspection, failed.select(), most=100).dead_letters) == found
        assert failed.scanned(inspection) == f"scanned {found} of about 50"
        assert inspection.is_full == (own is not None)
    assert held(sandbox) == 0


def test_conditions_are_compared_with_all_of_a_queue(sandbox: Sandbox) -> None:  # SPEC M2
    """Of kind 4 none has a failure record, those of kind 2 are undecodable; all are visible again at the end."""
    sandbox.queue("orders", dead_letter="orders-dlq")
    for index in range(200):
        kind, body = index % 5, json.dumps({"id": index})
        reason = "undecodable" if kind == 2 else "exhausted"
        put(
            sandbox, body, envelope_of(body, f"id-{index}", type=f"app.Kind{kind}", reason=reason) if kind < 4 else None
        )
    with failed.opened("orders-dlq") as inspection:
        shown = failed.show(inspection, failed.select(where=["type = app.Kind3", "body.id >= 100"]), most=200)
        assert sorted(each.id for each in shown.dead_letters) == [f"id-{index}" for index in range(103, 200, 5)]
        assert failed.scanned(inspection) == "scanned 200 of about 200"
    assert held(sandbox) == 0


# groups

TIMEOUT, DECLINED = "timeout00000", "declined0000"


@pytest.fixture
def grouped(sandbox: Sandbox) -> Sandbox:
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


def found(by: GroupBy = "fingerprint", **more: Any) -> list[failed.Group]:
    with failed.opened("orders-dlq") as inspection:
        return failed.groups(inspection, by, **more)


def test_a_group_has_a_count_its_times_an_example_and_a_rate(grouped: Sandbox) -> None:  # SPEC M2
    assert [(each.value, each.count, each.first, each.last, each.example, each.per_minute) for each in found()[:2]] == [
        (TIMEOUT, 6, "2026-11-21T08:00:00Z", "2026-11-21T08:40:00Z", "id-4", pytest.approx(6 / 40)),
        (DECLINED, 3, "2026-11-21T08:00:00Z", "2026-11-21T08:30:00Z", "id-3", pytest.approx(3 / 30)),
    ]
    bare = found()[2]
    assert (bare.value, bare.count, bare.failure, bare.per_minute) == (None, 1, None, None)
    assert held(grouped) == 0


@pytest.mark.parametrize("by", ["fingerprint", "error", "type", "queue", "reason"])
def test_the_conditions_of_a_group_select_all_of_it_and_no_others(grouped: Sandbox, by: GroupBy) -> None:  # SPEC M2
    """Also values that look like JSON, such as the message 5."""
    groups = found(by)
    assert sum(group.count for group in groups) == 10
    for group in groups:
        with failed.opened("orders-dlq") as inspection:
            shown = failed.show(inspection, failed.select(where=group.conditions)).dead_letters
        assert len(shown) == group.count
        assert group.example in {dead_letter.id for dead_letter in shown}


def test_a_selection_by_group_and_time(grouped: Sandbox) -> None:  # SPEC M2
    with failed.opened("orders-dlq") as inspection:
        selection = failed.select(group=TIMEOUT, since="2026-11-21T08:10Z", until="2026-11-21T08:40Z")
        shown = failed.show(inspection, selection).dead_letters
    assert sorted(dead_letter.id for dead_letter in shown) == ["id-1", "id-2", "id-7", "id-8"]
    assert [group.count for group in found(selection=selection)] == [4]
    with pytest.raises(ConfigurationError, match="ids cannot be combined with --where, --group"):
        failed.select(["id-1"], group=TIMEOUT)


def test_a_sample_and_a_stopped_count_have_what_was_received_and_a_second_call_continues(
    sandbox: Sandbox,
) -> None:  # SPEC M2, M5
    fill(sandbox, 120)
    assert sum(group.count for group in found(sample=30)) == 30
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
    body = "x" * 200_000
    fill(sandbox, 60, body=body)
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
