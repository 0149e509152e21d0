"""The order in which a batch runs: what was delivered before comes last."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.execution.intake import Records
from tarry.execution.order import fresh_first
from tests.records import record

counts = st.one_of(st.just(1), st.integers(1, 4))


def records_of(receives: list[Any], queue: str = "orders", groups: list[str | None] | None = None) -> Records:
    """Messages m0, m1, ... that were received so often."""
    return {
        f"m{index}": record(
            message_id=f"m{index}", queue=queue, receives=count, group=groups[index] if groups else None
        )
        for index, count in enumerate(receives)
    }


def order_of(records: Records) -> tuple[list[str], list[str]]:
    first, suspects = fresh_first(records)
    return [message_id for message_id, _ in first], [message_id for items in suspects for message_id, _ in items]


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
def test_every_message_is_in_the_order_once_with_its_record(records: Records) -> None:  # SPEC G4
    first, suspects = fresh_first(records)
    in_order = [*first, *chain.from_iterable(suspects)]
    assert dict(in_order) == records
    assert len(in_order) == len(records)


@given(standard_batches)
def test_fresh_messages_come_first_in_the_order_of_the_batch(records: Records) -> None:  # SPEC G4
    first, suspects = order_of(records)
    assert first == [message_id for message_id in records if count_of(records, message_id) == 1]
    assert all(count_of(records, message_id) > 1 for message_id in suspects)


@given(standard_batches)
def test_of_the_suspects_those_with_the_fewest_deliveries_come_first(records: Records) -> None:  # SPEC G4
    _, suspects = order_of(records)
    deliveries = [count_of(records, message_id) for message_id in suspects]
    assert deliveries == sorted(deliveries)


@given(standard_batches, st.randoms())
def test_the_order_of_the_suspects_does_not_hang_on_that_of_the_batch(records: Records, random: Any) -> None:  # SPEC G4
    shuffled = list(records.items())
    random.shuffle(shuffled)
    assert order_of(dict(shuffled))[1] == order_of(records)[1]


def test_equals_have_another_order_at_each_delivery() -> None:  # SPEC G4
    """Of ten that always come back together, over many deliveries each one is the first about as often as any."""
    firsts = [order_of(records_of([delivery] * 10))[1][0] for delivery in range(2, 502)]
    assert {message_id: firsts.count(message_id) > 25 for message_id in firsts} == {f"m{i}": True for i in range(10)}


@given(fifo_batches())
def test_within_a_fifo_group_the_order_is_kept(records: Records) -> None:  # SPEC G4, H1
    first, suspects = order_of(records)
    for group in ("a", "b", "c", None):
        in_batch = [message_id for message_id in records if group_of(records, message_id) == group]
        assert [each for each in first + suspects if group_of(records, each) == group] == in_batch


@given(fifo_batches())
def test_a_fifo_group_is_a_suspect_as_a_whole_if_its_first_message_here_was_delivered_before(
    records: Records,
) -> None:  # SPEC G4
    heads: dict[Any, str] = {}
    for message_id in records:
        heads.setdefault(group_of(records, message_id), message_id)
    first, suspects = order_of(records)
    assert all(count_of(records, heads[group_of(records, message_id)]) == 1 for message_id in first)
    assert all(count_of(records, heads[group_of(records, message_id)]) > 1 for message_id in suspects)
    assert first == [message_id for message_id in records if message_id in first]


@given(fifo_batches())
def test_a_suspected_group_runs_in_one_go(records: Records) -> None:  # SPEC G4
    _, suspects = fresh_first(records)
    groups = [{group_of(records, message_id) for message_id, _ in items} for items in suspects]
    assert all(len(of_one) == 1 for of_one in groups)
    assert len(groups) == len(set().union(*groups))


def test_a_group_id_on_a_standard_queue_is_no_order() -> None:  # SPEC H3, G4
    records = records_of([2, 1, 3], groups=["tenant", "tenant", "tenant"])
    assert order_of(records) == (["m1"], ["m0", "m2"])


@pytest.mark.parametrize("receives", [None, "", "many", "0", "-3", "01", [2], {}])
def test_a_count_that_says_nothing_is_that_of_a_fresh_message(receives: Any) -> None:  # SPEC C2, G4
    records = records_of([2, 1])
    records["m1"]["attributes"]["ApproximateReceiveCount"] = receives
    assert order_of(records) == (["m1"], ["m0"])


@pytest.mark.parametrize("attributes", [None, "text", [], 7])
def test_a_record_without_attributes_is_a_fresh_message(attributes: Any) -> None:  # SPEC A2, G4
    records = records_of([2, 1])
    records["m1"]["attributes"] = attributes
    assert order_of(records) == (["m1"], ["m0"])
    del records["m1"]["attributes"]
    assert order_of(records) == (["m1"], ["m0"])
