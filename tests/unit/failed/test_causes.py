"""The causes of the dead letters of several queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.groups import GroupBy, GroupCounts, causes
from tests.unit.failed.dead_letters import dead_letter, envelope_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.failed import DeadLetterMessage, Group


def failed_so(fingerprint: str, message: str, count: int = 1, **more: str) -> Iterator[DeadLetterMessage]:
    for index in range(count):
        record = {"type": "app.GatewayTimeout", "fingerprint": fingerprint, "message": message, **more}
        yield dead_letter("{}", envelope_of("{}", f"id-{index}", **record))


def groups(*found: Iterator[DeadLetterMessage], by: GroupBy = "fingerprint") -> list[Group]:
    counts = GroupCounts(by)
    for each in (each for some in found for each in some):
        counts.add(each)
    return counts.largest_first()


def test_one_error_in_two_handlers_is_one_cause_though_it_has_two_fingerprints() -> None:
    orders = groups(failed_so("of-orders", "no answer for 636e0ad2 in 3 s", 2), failed_so("else", "status 503"))
    refunds = groups(failed_so("of-refunds", "no answer for 9f164b01 in 3 s", 3), failed_so("other", "status 404"))
    first, *others = causes([("orders-dlq", orders), ("refunds-dlq", refunds)])
    assert (first.count, first.queues) == (5, {"refunds-dlq": 3, "orders-dlq": 2})
    assert [group.value for _, group in first.groups] == ["of-refunds", "of-orders"]  # which select the dead letters
    assert [each.queues for each in others] == [{"orders-dlq": 1}, {"refunds-dlq": 1}]


def test_one_fingerprint_is_one_cause_whatever_the_texts() -> None:
    found = causes([("a", groups(failed_so("same", "no Ada"))), ("b", groups(failed_so("same", "no Bob")))])
    assert [each.queues for each in found] == [{"a": 1, "b": 1}]


def test_dead_letters_without_a_record_are_one_cause() -> None:
    found = causes([("a", groups(iter([dead_letter()]))), ("b", groups(iter([dead_letter(), dead_letter()])))])
    assert [each.count for each in found] == [3]


def test_groups_by_something_else_are_one_where_their_value_is() -> None:
    both = [("a", groups(failed_so("x", "1"), by="type")), ("b", groups(failed_so("y", "2"), by="type"))]
    assert [each.count for each in causes(both)] == [2]
