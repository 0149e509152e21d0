"""Looking into a dead-letter queue, which leaves it as it was."""

import contextlib
import json
from random import Random
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry import Message, Reject, consumer, failed
from tarry.simulator.client import SimulatedClient
from tarry.simulator.history import History
from tarry.simulator.sqs import Sqs
from tarry.testing import Realism, Sandbox
from tarry.world import World, use
from tests.unit.failed.letters import record_of
from tests.wire import TestClock


@consumer
def rejects(message: Message) -> None:
    raise Reject("no")


def dead_letters(sandbox: Sandbox, count: int, queue: str = "orders", group: str | None = None) -> list[str]:
    """Messages that have died of their handler; their ids."""
    dlq = f"{queue.removesuffix('.fifo')}-dlq" + (".fifo" if queue.endswith(".fifo") else "")
    sandbox.queue(queue, dead_letter=dlq)
    sandbox.connect(rejects, queue)
    ids = [sandbox.send(queue, {"id": index}, group_id=group) for index in range(count)]
    sandbox.run()
    return ids


def hidden(sandbox: Sandbox, queue: str = "orders-dlq") -> int:
    return sum(letter.hidden_seconds > 0 for letter in sandbox.messages(queue))


def test_a_look_leaves_the_queue_as_it_was(sandbox: Sandbox) -> None:  # SPEC M2
    ids = dead_letters(sandbox, 25)
    with failed.opened("orders-dlq") as look:
        first = failed.show(look, failed.select())
        assert hidden(sandbox) == 25  # held: nobody else gets them meanwhile
    assert hidden(sandbox) == 0
    with failed.opened("orders-dlq") as look:
        second = failed.show(look, failed.select())
    assert sorted(letter.id for letter in first.dead_letters) == sorted(ids)
    assert [failed.as_json(letter) for letter in first.dead_letters] == [
        failed.as_json(letter) for letter in second.dead_letters
    ]


def test_it_says_how_much_it_saw(sandbox: Sandbox) -> None:  # SPEC M2, PLATFORM 22
    dead_letters(sandbox, 30)
    with failed.opened("orders-dlq") as look:
        assert len(failed.show(look, failed.select(), most=20).dead_letters) == 20
        assert failed.scanned(look) == "scanned 20 of about 30"


@pytest.mark.parametrize("most", [1, 7, 15, 29])
def test_without_conditions_no_more_are_looked_at_than_are_shown(sandbox: Sandbox, most: int) -> None:  # SPEC M2
    dead_letters(sandbox, 30)
    with failed.opened("orders-dlq") as look:
        assert len(failed.show(look, failed.select(), most).dead_letters) == most
        assert look.scanned == hidden(sandbox) == most


def test_each_letter_is_seen_once_whatever_sqs_does() -> None:  # SPEC M2
    with Sandbox(seed=3, realism=Realism(reorder=True, partial=True, duplicate=0.3)) as sandbox:
        ids = dead_letters(sandbox, 40)
        with failed.opened("orders-dlq") as look:
            letters = [letter.id for letters in look.polls() for letter in letters]
            assert set(letters) == set(ids)
            there = sandbox.messages("orders-dlq")  # a message that came again after its deletion died twice
            assert sorted(letters) == sorted(letter.id for letter in there)


def test_what_is_looked_at_is_held_for_as_long_as_that_takes(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 3)
    with failed.opened("orders-dlq", keepalive=5) as look:
        failed.show(look, failed.select())
        for _ in range(20):
            sandbox.sleep(30)
            assert hidden(sandbox) == 3
    assert hidden(sandbox) == 0


def test_what_a_killed_process_held_is_shown_soon(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 3)
    with failed.opened("orders-dlq", keepalive=5) as look:
        failed.show(look, failed.select())
        assert max(letter.hidden_seconds for letter in sandbox.messages("orders-dlq")) <= 15


def test_an_error_of_the_callers_gives_back_what_is_held(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 12)
    with contextlib.suppress(KeyboardInterrupt), failed.opened("orders-dlq") as look:
        failed.show(look, failed.select())
        raise KeyboardInterrupt
    assert hidden(sandbox) == 0


def test_a_look_that_fails_half_way_gives_back_what_it_has(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 30)
    with failed.opened("orders-dlq") as look:
        polls = look.polls()
        assert len(next(polls)) == 10
        sandbox.faults.add("denied", operation="ReceiveMessage", times=1)
        with pytest.raises(ClientError):
            next(polls)
    assert hidden(sandbox) == 0


def test_what_is_not_looked_for_is_given_back_at_once(sandbox: Sandbox) -> None:  # SPEC M5
    ids = dead_letters(sandbox, 25)
    with failed.opened("orders-dlq") as look:
        shown = failed.show(look, failed.select([ids[13], ids[2]]))
        assert [letter.id for letter in shown.dead_letters] == [ids[13], ids[2]]
        assert hidden(sandbox) == 2


def test_an_sqs_that_throttles_is_waited_for(sandbox: Sandbox) -> None:
    dead_letters(sandbox, 25)
    sandbox.faults.add("throttle", times=None, chance=0.6)
    with failed.opened("orders-dlq") as look:
        assert len(failed.show(look, failed.select()).dead_letters) == 25
    sandbox.faults.clear()
    assert hidden(sandbox) == 0


def test_what_cannot_be_shown_again_is_counted_and_comes_back_by_itself(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 3)
    with failed.opened("orders-dlq") as look:
        failed.show(look, failed.select())
        sandbox.faults.add("denied", operation="ChangeMessageVisibilityBatch", times=None)
    assert look.not_released == 3
    sandbox.advance(15)
    assert hidden(sandbox) == 0


def test_a_look_ends_when_it_is_to(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 40)
    stops: list[bool] = []
    with failed.opened("orders-dlq", stop=lambda: bool(stops)) as look:
        polls = look.polls()
        next(polls)
        stops.append(True)
        assert list(polls) == []
        assert look.scanned == 10
    assert hidden(sandbox) == 0


def test_on_fifo_only_the_first_of_a_group_are_seen_at_a_time(sandbox: Sandbox) -> None:  # PLATFORM 14, 22
    dead_letters(sandbox, 25, "orders.fifo", group="a")
    with failed.opened("orders-dlq.fifo") as look:
        shown = failed.show(look, failed.select())
        assert [letter.body for letter in shown.dead_letters] == [f'{{"id":{index}}}' for index in range(10)]
        assert failed.scanned(look) == "scanned 10 of about 25"
    assert hidden(sandbox, "orders-dlq.fifo") == 0


def test_one_by_one_those_of_a_group_follow_though_the_first_is_held(sandbox: Sandbox) -> None:  # PLATFORM 14, 22
    dead_letters(sandbox, 4, "orders.fifo", group="a")
    stops: list[bool] = []
    with failed.opened("orders-dlq.fifo", stop=lambda: bool(stops)) as look:
        letters = look.dead_letters()
        assert [next(letters).body for _ in range(3)] == [f'{{"id":{index}}}' for index in range(3)]
        stops.append(True)
        assert list(letters) == []
    assert hidden(sandbox, "orders-dlq.fifo") == 0


def test_one_by_one_no_more_are_held_than_were_asked_for(sandbox: Sandbox) -> None:  # SPEC M5
    dead_letters(sandbox, 4)
    with failed.opened("orders-dlq") as look:
        letters = look.dead_letters()
        next(letters)
        next(letters)
        assert hidden(sandbox) == 2


def test_a_queue_that_is_not_there_is_refused_with_those_that_are(sandbox: Sandbox) -> None:  # SPEC M1
    sandbox.queue("orders", dead_letter="orders-dlq")
    with pytest.raises(failed.UnknownQueue, match="there is no queue 'nope'; there are orders-dlq, orders"):
        failed.find("nope")


def test_a_queue_is_found_by_name_url_and_arn_with_what_it_is(sandbox: Sandbox) -> None:  # SPEC M1
    sandbox.queue("worse")
    sandbox.queue("orders-dlq", dead_letter="worse", max_receive_count=3)
    sandbox.queue("orders", dead_letter="orders-dlq")
    for name in ("orders-dlq", sandbox.sqs.url("orders-dlq"), sandbox.sqs.arn("orders-dlq")):
        found = failed.find(name)
        assert (found.name, found.moves_to, found.moves_after) == ("orders-dlq", "worse", 3)
        assert [source.name for source in found.sources or ()] == ["orders"]


# with as many as there can be


class Full:
    """A dead-letter queue of a world whose clock is moved by hand."""

    def __init__(self, in_flight_limit: int) -> None:
        self.clock = TestClock()
        self.sqs = Sqs(self.clock.time, Random(1), History(self.clock.time), in_flight_limit=in_flight_limit)
        self.client: Any = SimulatedClient(self.sqs, self.clock)
        self.world = World(clock=self.clock, random=Random(2), client_factory=lambda: self.client)
        self.url = self.client.create_queue(QueueName="dlq")["QueueUrl"]

    def fill(self, count: int) -> None:
        for index in range(count):
            self.sqs.call("SendMessage", {"QueueUrl": self.url, "MessageBody": str(index)})


def test_where_no_more_can_be_in_flight_it_ends_with_what_it_has_seen() -> None:  # SPEC M2, PLATFORM 6
    full = Full(in_flight_limit=35)
    full.fill(50)
    with use(full.world):
        with failed.opened("dlq") as look:
            assert len(failed.show(look, failed.select(), most=100).dead_letters) == 35
            assert failed.scanned(look) == "scanned 35 of about 50"
        assert full.sqs.depth("dlq").in_flight == 0


def test_it_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC M2, PLATFORM 6
    monkeypatch.setattr("tarry.failed.inspection.MOST_HELD", 30)
    full = Full(in_flight_limit=120)
    full.fill(50)
    with use(full.world):
        with failed.opened("dlq") as look:
            assert len(failed.show(look, failed.select(), most=100).dead_letters) == 30
            assert look.is_full
        assert full.sqs.depth("dlq").in_flight == 0


def test_ten_thousand_letters_of_five_kinds_are_told_apart(big: Full) -> None:  # SPEC M2
    """Some without a record, some undecodable; every one of them visible again in the end."""
    with use(big.world):
        with failed.opened("dlq") as look:
            selection = failed.select(where=["type = app.Kind3", "body.id >= 5000"])
            shown = failed.show(look, selection, most=10_000)
        assert failed.scanned(look) == "scanned 10,000 of about 10,000"
        assert len(shown.dead_letters) == 1_000
        assert {letter.failure.type for letter in shown.dead_letters if letter.failure} == {"app.Kind3"}
        assert big.sqs.depth("dlq").in_flight == 0


@pytest.fixture
def big() -> Full:
    """Kinds 0 to 4, two thousand of each; what is of kind 4 has no record."""
    full = Full(in_flight_limit=120_000)
    for index in range(10_000):
        kind, body = index % 5, json.dumps({"id": index})
        reason = "undecodable" if kind == 2 else "exhausted"
        record = json.dumps(record_of(body, f"id-{index}", type=f"app.Kind{kind}", reason=reason))
        told = {"Tarry": {"DataType": "String", "StringValue": record}} if kind < 4 else {}
        parameters = {"QueueUrl": full.url, "MessageBody": body, "MessageAttributes": told}
        full.sqs.call("SendMessage", parameters)
    return full
