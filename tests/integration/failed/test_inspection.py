"""The inspection of a dead-letter queue, which leaves the queue unchanged."""

import contextlib
import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry import ConfigurationError, Message, Reject, consumer, failed
from tarry.testing import Realism, Sandbox
from tarry.tools.simulator.client import SimulatedClient
from tarry.tools.simulator.history import History
from tarry.tools.simulator.sqs import Sqs
from tarry.world import World, use
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import TestClock


@consumer
def rejects(message: Message) -> None:
    raise Reject("no")


def dead_letters(sandbox: Sandbox, count: int, queue: str = "orders", group: str | None = None) -> list[str]:
    """Dead-letter messages of a queue; return their ids."""
    dlq = f"{queue.removesuffix('.fifo')}-dlq" + (".fifo" if queue.endswith(".fifo") else "")
    sandbox.queue(queue, dead_letter=dlq)
    sandbox.connect(rejects, queue)
    ids = [sandbox.send(queue, {"id": index}, group_id=group) for index in range(count)]
    sandbox.run()
    return ids


def invisible(sandbox: Sandbox, queue: str = "orders-dlq") -> int:
    """Return the number of dead letters in flight."""
    return sum(dead_letter.invisible_seconds > 0 for dead_letter in sandbox.messages(queue))


def test_an_inspection_leaves_the_queue_unchanged(sandbox: Sandbox) -> None:  # SPEC M2, M5
    """Also after an exception. Dead letters stay in flight until then; if it is killed, they are visible soon."""
    ids = dead_letters(sandbox, 25)
    with failed.opened("orders-dlq", keepalive=5) as inspection:
        first = failed.show(inspection, failed.select())
        assert max(dead_letter.invisible_seconds for dead_letter in sandbox.messages("orders-dlq")) <= 15
        for _ in range(5):
            assert invisible(sandbox) == 25
            sandbox.sleep(30)
    assert invisible(sandbox) == 0
    with contextlib.suppress(KeyboardInterrupt), failed.opened("orders-dlq") as inspection:
        second = failed.show(inspection, failed.select())
        raise KeyboardInterrupt
    assert invisible(sandbox) == 0
    assert sorted(dead_letter.id for dead_letter in first.dead_letters) == sorted(ids)
    assert [*map(failed.as_json, first.dead_letters)] == [*map(failed.as_json, second.dead_letters)]


@pytest.mark.parametrize("most", [1, 7, 15, 29])
def test_without_conditions_no_more_are_received_than_are_shown(
    sandbox: Sandbox, most: int
) -> None:  # SPEC M2, PLATFORM 22
    dead_letters(sandbox, 30)
    with failed.opened("orders-dlq") as inspection:
        assert len(failed.show(inspection, failed.select(), most).dead_letters) == most
        assert inspection.scanned == invisible(sandbox) == most
        assert failed.scanned(inspection) == f"scanned {most} of about 30"


def test_each_dead_letter_is_shown_once_whatever_sqs_does() -> None:  # SPEC M2
    with Sandbox(seed=3, realism=Realism(reorder=True, partial=True, duplicate=0.3)) as sandbox:
        ids = dead_letters(sandbox, 40)
        with failed.opened("orders-dlq") as inspection:
            seen = [dead_letter.id for polled in inspection.polls() for dead_letter in polled]
            assert set(seen) == set(ids)
            there = sandbox.messages("orders-dlq")  # a message redelivered after its deletion is dead-lettered twice
            assert sorted(seen) == sorted(dead_letter.id for dead_letter in there)


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_empty_polls_of_all_threads_end_a_scan(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """A scan ends without more polls once two threads found the queue empty; on FIFO, once no thread works any more."""
    dead_letters(sandbox, 25, f"orders{suffix}", "a" if suffix else None)
    sandbox.queue(f"other{suffix}")
    receives: list[int] = []
    with failed.opened(f"orders-dlq{suffix}") as inspection:
        poll = inspection.poll

        def counted(most: int, *others: Any) -> list[failed.DeadLetterMessage]:
            found = poll(most, *others)
            receives.append(len(found))
            return found

        monkeypatch.setattr(inspection, "poll", counted)
        routes = failed.Routes(inspection.queue, f"other{suffix}")
        results = failed.retry(inspection, failed.select(everything=True), routes, concurrency=3)
        assert sum(result.outcome == "retried" for result in results) == sum(receives) == 25
    assert receives.count(0) <= 3


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "denied"])
def test_an_inspection_that_is_stopped_or_fails_releases_what_it_received(
    sandbox: Sandbox, is_stopped: bool
) -> None:  # SPEC M5
    dead_letters(sandbox, 30)
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
    assert invisible(sandbox) == 0


def test_the_beginning_of_an_id_is_enough_if_it_is_unique(sandbox: Sandbox) -> None:  # SPEC M1
    ids = dead_letters(sandbox, 25)
    with failed.opened("orders-dlq") as inspection:
        shown = failed.show(inspection, failed.select([ids[13][:12], ids[2], "unknown"]))
        assert [dead_letter.id for dead_letter in shown.dead_letters] == [ids[13], ids[2]]
        assert (shown.missing, inspection.scanned) == (("unknown",), 25)
        assert invisible(sandbox) == 2  # the others are released at once
    [(first, _)] = Counter(each[0] for each in ids).most_common(1)
    with failed.opened("orders-dlq") as inspection, pytest.raises(failed.AmbiguousId) as caught:
        list(failed.remove(inspection, failed.select([first])))
    assert sorted(caught.value.matches) == sorted(each for each in ids if each[0] == first)
    assert (invisible(sandbox), len(sandbox.messages("orders-dlq"))) == (0, 25)
    with pytest.raises(ConfigurationError, match="an id is empty"):
        failed.select([""])


def test_throttled_requests_are_repeated(sandbox: Sandbox) -> None:
    dead_letters(sandbox, 25)
    sandbox.faults.add("throttle", times=None, chance=0.6)
    with failed.opened("orders-dlq") as inspection:
        assert len(failed.show(inspection, failed.select()).dead_letters) == 25
    sandbox.faults.clear()
    assert invisible(sandbox) == 0


def test_dead_letters_that_cannot_be_released_are_counted_and_time_out(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 3)
    with failed.opened("orders-dlq") as inspection:
        failed.show(inspection, failed.select())
        sandbox.faults.add("denied", operation="ChangeMessageVisibilityBatch", times=None)
    assert inspection.leases.not_released == 3
    sandbox.advance(15)
    assert invisible(sandbox) == 0


def test_on_fifo_only_the_first_ten_of_a_group_are_shown(sandbox: Sandbox) -> None:  # PLATFORM 14, 22
    dead_letters(sandbox, 25, "orders.fifo", group="a")
    with failed.opened("orders-dlq.fifo") as inspection:
        shown = failed.show(inspection, failed.select())
        assert [dead_letter.body for dead_letter in shown.dead_letters] == [f'{{"id":{index}}}' for index in range(10)]
        assert failed.scanned(inspection) == "scanned 10 of about 25"
    assert invisible(sandbox, "orders-dlq.fifo") == 0


def test_one_at_a_time_a_fifo_group_continues_while_its_first_message_is_in_flight(
    sandbox: Sandbox,
) -> None:  # PLATFORM 14, 22
    dead_letters(sandbox, 4, "orders.fifo", group="a")
    stops: list[bool] = []
    with failed.opened("orders-dlq.fifo", stop=lambda: bool(stops)) as inspection:
        received = inspection.dead_letters()
        assert [next(received).body for _ in range(3)] == [f'{{"id":{index}}}' for index in range(3)]
        stops.append(True)
        assert list(received) == []
    assert invisible(sandbox, "orders-dlq.fifo") == 0


def test_one_at_a_time_no_more_are_received_than_asked_for(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 4)
    with failed.opened("orders-dlq") as inspection:
        received = inspection.dead_letters()
        next(received)
        next(received)
        assert invisible(sandbox) == 2


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


# with many dead letters


class FullQueue:
    """A dead-letter queue with a limit of messages in flight, in a world whose clock is moved by hand."""

    def __init__(self, in_flight_limit: int) -> None:
        self.clock = TestClock()
        self.sqs = Sqs(self.clock.time, Random(1), History(self.clock.time), in_flight_limit=in_flight_limit)
        self.client: Any = SimulatedClient(self.sqs, self.clock)
        self.world = World(clock=self.clock, random=Random(2), client_factory=lambda: self.client)
        self.url = self.client.create_queue(QueueName="dlq")["QueueUrl"]

    def fill(self, count: int) -> None:
        for index in range(count):
            self.sqs.call("SendMessage", {"QueueUrl": self.url, "MessageBody": str(index)})


@pytest.mark.parametrize(("limit", "own", "found"), [(35, None, 35), (120, 30, 30)])
def test_an_inspection_ends_at_the_in_flight_limit_of_sqs_or_before_it(
    limit: int, own: int | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M2, PLATFORM 6
    """It leaves some of the limit to other consumers."""
    if own:
        monkeypatch.setattr("tarry.failed.inspection.MAX_IN_FLIGHT", own)
    full = FullQueue(in_flight_limit=limit)
    full.fill(50)
    with use(full.world):
        with failed.opened("dlq") as inspection:
            assert len(failed.show(inspection, failed.select(), most=100).dead_letters) == found
            assert failed.scanned(inspection) == f"scanned {found} of about 50"
            assert inspection.is_full == (own is not None)
        assert full.sqs.depth("dlq").in_flight == 0


def test_thousands_of_dead_letters_of_five_kinds_are_filtered() -> None:  # SPEC M2
    """Of kind 4 none has a failure record, those of kind 2 are undecodable; all are visible again at the end."""
    full = FullQueue(in_flight_limit=120_000)
    for index in range(2_000):
        kind, body = index % 5, json.dumps({"id": index})
        reason = "undecodable" if kind == 2 else "exhausted"
        envelope = json.dumps(envelope_of(body, f"id-{index}", type=f"app.Kind{kind}", reason=reason))
        attributes = {"Tarry": {"DataType": "String", "StringValue": envelope}} if kind < 4 else {}
        full.sqs.call("SendMessage", {"QueueUrl": full.url, "MessageBody": body, "MessageAttributes": attributes})
    with use(full.world):
        with failed.opened("dlq") as inspection:
            selection = failed.select(where=["type = app.Kind3", "body.id >= 1000"])
            shown = failed.show(inspection, selection, most=2_000).dead_letters
        assert failed.scanned(inspection) == "scanned 2,000 of about 2,000"
        assert {each.failure.type for each in shown if each.failure} == {"app.Kind3"}
        assert (len(shown), full.sqs.depth("dlq").in_flight) == (200, 0)
