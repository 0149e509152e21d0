"""The records of a batch: whether it is plain, and the order in which it runs: redelivered messages come last."""

from itertools import chain
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.message.invocation import Records
from tarry.message.invocation import records_of as records_in
from tarry.run.order import Isolation, deletes_on_fifo, fresh_first
from tests.records import event, record

counts = st.one_of(st.just(1), st.integers(1, 4))


def records_of(receives: list[Any], queue: str = "orders", groups: list[str | None] | None = None) -> Records:
    """Return the records of messages m0, m1, ... with the given receive counts."""
    return {
        f"m{index}": record(
            message_id=f"m{index}", queue=queue, receives=count, group=groups[index] if groups else None
        )
        for index, count in enumerate(receives)
    }


def order_of(records: Records) -> tuple[list[str], list[str]]:
    first, redelivered = fresh_first(records)
    return [message_id for message_id, _ in first], [message_id for items in redelivered for message_id, _ in items]


@st.composite
def fifo_batches(draw: st.DrawFn) -> Records:
    messages = draw(st.lists(st.tuples(counts, st.sampled_from(["a", "b", "c", None])), max_size=10))
    return records_of([count for count, _ in messages], "ledger.fifo", [group for _, group in messages])


standard_batches = st.lists(counts, max_size=30).map(records_of)


def count_of(records: Records, message_id: str) -> int:
    return int(records[message_id]["attributes"]["ApproximateReceiveCount"])


@given(standard_batches, st.randoms())
def test_fresh_messages_come_first_and_redelivered_ones_by_their_deliveries(
    records: Records, random: Any
) -> None:  # SPEC G4
    """The order of redelivered messages does not depend on that of the batch. Each message is there once."""
    first, redelivered = order_of(records)
    assert sorted([*first, *redelivered]) == sorted(records)
    assert first == [message_id for message_id in records if count_of(records, message_id) == 1]
    deliveries = [count_of(records, message_id) for message_id in redelivered]
    assert all(count > 1 for count in deliveries)
    assert deliveries == sorted(deliveries)
    shuffled = list(records.items())
    random.shuffle(shuffled)
    assert order_of(dict(shuffled))[1] == redelivered


def test_messages_with_equal_counts_have_another_order_at_each_delivery() -> None:  # SPEC G4
    """If ten messages are always redelivered together, each is the first about as often as the others."""
    firsts = [order_of(records_of([delivery] * 10))[1][0] for delivery in range(2, 502)]
    assert {message_id: firsts.count(message_id) > 25 for message_id in firsts} == {f"m{i}": True for i in range(10)}


@given(fifo_batches())
def test_a_fifo_group_keeps_its_order_and_counts_as_redelivered_if_its_first_message_in_the_batch_is(
    records: Records,
) -> None:  # SPEC G4, H1
    """The messages of a redelivered group run one after the other. Each message is there once, with its record."""
    groups: dict[Any, list[str]] = {}
    for message_id in records:
        groups.setdefault(records[message_id]["attributes"].get("MessageGroupId"), []).append(message_id)
    fresh = {message_id for of_one in groups.values() if count_of(records, of_one[0]) == 1 for message_id in of_one}
    first, redelivered = map(list, fresh_first(records))
    in_order = [*first, *chain.from_iterable(redelivered)]
    assert dict(in_order) == records
    assert len(in_order) == len(records)
    assert [message_id for message_id, _ in first] == [message_id for message_id in records if message_id in fresh]
    in_groups = [[message_id for message_id, _ in items] for items in redelivered]
    assert sorted(in_groups) == sorted(of_one for of_one in groups.values() if of_one[0] not in fresh)
    deliveries = [count_of(records, of_one[0]) for of_one in in_groups]
    assert deliveries == sorted(deliveries)


def test_a_group_id_on_a_standard_queue_does_not_order_messages() -> None:  # SPEC H3, G4
    records = records_of([2, 1, 3], groups=["tenant", "tenant", "tenant"])
    assert order_of(records) == (["m1"], ["m0", "m2"])


@pytest.mark.parametrize(
    "odd",
    [
        {}, *({"attributes": odd} for odd in (None, "text", [], 7)),
        *({"attributes": {"ApproximateReceiveCount": odd}} for odd in (None, "", "many", "0", "-3", "01", [2], {})),
    ],
    ids=str,
)  # fmt: skip
def test_a_message_with_an_invalid_receive_count_is_fresh(odd: dict[str, Any]) -> None:  # SPEC A2, C2, G4
    records = records_of([2, 1])
    del records["m1"]["attributes"]
    records["m1"] |= odd
    assert order_of(records) == (["m1"], ["m0"])


def test_a_message_gives_way_to_those_with_more_deliveries_that_have_not_started() -> None:  # SPEC I2, G4
    records = records_of([2, 3, 5, 1])  # the last one is behind the one before it in its group, and waits with it
    run: Any = SimpleNamespace(is_fifo=False, invocation=SimpleNamespace(deadline=1_000), records=records)
    first, second, *last = records.items()
    isolation = Isolation([[first], [second], last], run)
    assert [isolation.waiting_behind(message_id) for message_id in (*records, "fresh")] == [3, 2, 0, 0, 4]
    isolation.remove("m2")
    assert [isolation.waiting_behind(message_id) for message_id in ("m0", "m1", "m3", "fresh")] == [2, 1, 0, 3]
    assert ("m2" in isolation, "m3" in isolation) == (False, True)
    assert isolation.has_whole_batch


@pytest.mark.parametrize(
    ("done", "left", "every"),
    [(0, 1, 1), (0, 2, 1), (0, 4, 2), (6, 6, 3), (8, 10, 5), (1, 9, 9), (1, 19, 7), (90, 100, 5)],
)
def test_on_fifo_deletes_are_as_many_requests_as_isolating_takes_and_begin_later_at_each_delivery(
    done: int, left: int, every: int
) -> None:  # SPEC G4
    found = [deletes_on_fifo(done, left, receive_count) for receive_count in range(2, 2 + every)]
    assert {interval for _, interval in found} == {every}
    assert sorted(first for first, _ in found) == list(range(1, every + 1))


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in record({}, "m1").items() if key != name}


@pytest.mark.parametrize(
    ("other", "are_plain"),
    [
        (record({}, "m1"), True),
        (record({}, "m1", "payments"), True),
        (record({}, "m1", receives=2), False),
        (record({}, "m1", attributes={"tenant": {"stringValue": "acme", "dataType": "String"}}), False),
        (record({}, "m1", "orders.fifo", group="g"), True),
        (record({}, "m1", "orders.fifo", group="g", receives=2), False),
        (record({}, "m0", receives=1), False),  # twice in the batch
        *((without(name), False) for name in ("messageAttributes", "attributes", "eventSourceARN")),
        ({**record({}, "m1"), "attributes": None}, False),
        ({**record({}, "m1"), "eventSourceARN": None}, False),
    ],
)
def test_a_batch_is_plain_if_all_its_messages_are(other: Any, are_plain: bool) -> None:
    plain = record({}, "m0")
    for batch in ([plain, other], [other, plain]):
        records, found, is_fifo = records_in(event(*batch))
        assert (found, is_fifo) == (are_plain, str(other.get("eventSourceARN")).endswith(".fifo"))
        assert records["m0"] is (batch[0] if other["messageId"] == "m0" else plain)
        assert {name: each["messageId"] for name, each in records.items()} == {"m0": "m0"} | {
            other["messageId"]: other["messageId"]
        }
