"""The order in which a batch runs: redelivered messages come last."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.message.invocation import Records
from tarry.run.order import fresh_first
from tests.records import record

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


def group_of(records: Records, message_id: str) -> Any:
    return records[message_id]["attributes"].get("MessageGroupId")


def count_of(records: Records, message_id: str) -> int:
    return int(records[message_id]["attributes"]["ApproximateReceiveCount"])


@given(st.one_of(standard_batches, fifo_batches()))
def test_the_order_has_every_message_once_with_its_record(records: Records) -> None:  # SPEC G4
    first, redelivered = fresh_first(records)
    in_order = [*first, *chain.from_iterable(redelivered)]
    assert dict(in_order) == records
    assert len(in_order) == len(records)


@given(standard_batches)
def test_fresh_messages_come_first_in_the_order_of_the_batch(records: Records) -> None:  # SPEC G4
    first, redelivered = order_of(records)
    assert first == [message_id for message_id in records if count_of(records, message_id) == 1]
    assert all(count_of(records, message_id) > 1 for message_id in redelivered)


@given(standard_batches)
def test_redelivered_messages_with_the_fewest_deliveries_come_first(records: Records) -> None:  # SPEC G4
    _, redelivered = order_of(records)
    deliveries = [count_of(records, message_id) for message_id in redelivered]
    assert deliveries == sorted(deliveries)


@given(standard_batches, st.randoms())
def test_the_order_of_redelivered_messages_does_not_depend_on_that_of_the_batch(
    records: Records, random: Any
) -> None:  # SPEC G4
    shuffled = list(records.items())
    random.shuffle(shuffled)
    assert order_of(dict(shuffled))[1] == order_of(records)[1]


def test_messages_with_equal_counts_have_another_order_at_each_delivery() -> None:  # SPEC G4
    """If ten messages are always redelivered together, each is the first about as often as the others."""
    firsts = [order_of(records_of([delivery] * 10))[1][0] for delivery in range(2, 502)]
    assert {message_id: firsts.count(message_id) > 25 for message_id in firsts} == {f"m{i}": True for i in range(10)}


@given(fifo_batches())
def test_the_order_within_a_fifo_group_is_kept(records: Records) -> None:  # SPEC G4, H1
    first, redelivered = order_of(records)
    for group in ("a", "b", "c", None):
        in_batch = [message_id for message_id in records if group_of(records, message_id) == group]
        assert [each for each in first + redelivered if group_of(records, each) == group] == in_batch


@given(fifo_batches())
def test_a_whole_fifo_group_counts_as_redelivered_if_its_first_message_in_the_batch_is(
    records: Records,
) -> None:  # SPEC G4
    heads: dict[Any, str] = {}
    for message_id in records:
        heads.setdefault(group_of(records, message_id), message_id)
    first, redelivered = order_of(records)
    assert all(count_of(records, heads[group_of(records, message_id)]) == 1 for message_id in first)
    assert all(count_of(records, heads[group_of(records, message_id)]) > 1 for message_id in redelivered)
    assert first == [message_id for message_id in records if message_id in first]


@given(fifo_batches())
def test_the_messages_of_a_redelivered_group_run_one_after_the_other(records: Records) -> None:  # SPEC G4
    _, redelivered = fresh_first(records)
    groups = [{group_of(records, message_id) for message_id, _ in items} for items in redelivered]
    assert all(len(of_one) == 1 for of_one in groups)
    assert len(groups) == len(set().union(*groups))


def test_a_group_id_on_a_standard_queue_does_not_order_messages() -> None:  # SPEC H3, G4
    records = records_of([2, 1, 3], groups=["tenant", "tenant", "tenant"])
    assert order_of(records) == (["m1"], ["m0", "m2"])


@pytest.mark.parametrize("receives", [None, "", "many", "0", "-3", "01", [2], {}])
def test_a_message_with_an_invalid_receive_count_is_fresh(receives: Any) -> None:  # SPEC C2, G4
    records = records_of([2, 1])
    records["m1"]["attributes"]["ApproximateReceiveCount"] = receives
    assert order_of(records) == (["m1"], ["m0"])


@pytest.mark.parametrize("attributes", [None, "text", [], 7])
def test_a_message_without_attributes_is_fresh(attributes: Any) -> None:  # SPEC A2, G4
    records = records_of([2, 1])
    records["m1"]["attributes"] = attributes
    assert order_of(records) == (["m1"], ["m0"])
    del records["m1"]["attributes"]
    assert order_of(records) == (["m1"], ["m0"])
