"""Frozen values."""

import copy
import logging
from typing import Any, ClassVar

import pytest

from tarry import DeadLetter, Exponential, Fixed, LogOptions, Outcome, RetryInPlace, RetryPolicy
from tarry.support.values import (
    DEBUG,
    ERROR,
    INFO,
    WARNING,
    QueueArn,
    Value,
    fields_of,
    named_queue,
    queue_arn,
    receive_count,
)
from tests.wire import arn


class Point(Value):
    x: int
    y: int = 0


class DerivedPoint(Point):
    pass


class Segment(Value):
    start: int
    end: int
    width: int = 1


def test_annotations_make_the_constructor() -> None:
    assert (Point(1, 2), Point(x=1, y=2), Point(1, y=2)) == (Point(1, 2),) * 3
    assert fields_of(Point(1)) == fields_of(Point(x=1)) == {"x": 1, "y": 0}


@pytest.mark.parametrize(
    ("kind", "values", "fields", "text"),
    [
        (Point, (), {}, "Point needs x"),
        (Point, (1, 2, 3), {}, "Point takes x, y; got 3 values and []"),
        (Point, (1,), {"x": 1}, "Point takes x, y; got 1 values and ['x']"),
        (Point, (1,), {"z": 1}, "Point takes x, y; got 1 values and ['z']"),
        (Segment, (1,), {}, "Segment needs end"),
        (Segment, (), {"end": 1}, "Segment needs start"),
        (Segment, (1,), {"width": 2}, "Segment needs end"),
        (RetryInPlace, (1,), {}, "RetryInPlace takes nothing; got 1 values and []"),
    ],
)
def test_wrong_arguments_of_a_value_are_named(kind: Any, values: Any, fields: Any, text: str) -> None:
    with pytest.raises(TypeError) as error:
        kind(*values, **fields)
    assert str(error.value) == text


def test_a_subclass_of_the_user_may_have_any_annotations() -> None:
    class Noted(RetryInPlace):
        hits: ClassVar[dict[str, int]] = {}
        note: str

    assert (repr(Noted()), Noted() == Noted(), hash(Noted()) == hash(Noted())) == ("Noted()", True, True)


def test_values_are_equal_by_type_and_fields_show_them_and_cannot_be_changed() -> None:
    point = Point(1, 2)
    assert {point, Point(1, 2)} == {point}
    for other in (Point(2, 1), DerivedPoint(1, 2), (1, 2)):
        assert (point == other) is False
    assert repr(point) == "Point(x=1, y=2)"
    for change in (lambda: setattr(point, "x", 5), lambda: delattr(point, "x"), lambda: setattr(point, "z", 5)):
        with pytest.raises(AttributeError, match=r"Point is frozen: [xz]"):
            change()
    assert point == Point(1, 2)


PUBLIC = [
    Fixed(60), Exponential(1, 2), Outcome.retry(5), RetryPolicy(3, Fixed(1)), LogOptions(body=True), DeadLetter("q"),
    RetryInPlace(),
]  # fmt: skip


@pytest.mark.parametrize("value", PUBLIC, ids=lambda value: type(value).__name__)
def test_a_value_can_be_copied(value: Value) -> None:
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value


def test_the_levels_are_those_of_logging() -> None:
    assert (DEBUG, INFO, WARNING, ERROR) == (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR)


def test_a_receive_count_that_is_missing_unreadable_or_not_positive_is_1() -> None:  # SPEC C2
    texts = ("1", "2", "15", 3, "0", "-4", "", "two", None, [], float("inf"))
    assert [receive_count(text) for text in texts] == [1, 2, 15, 3, *[1] * 7]


# the ARNs of queues


@pytest.mark.parametrize(
    ("text", "account", "name"),
    [
        (arn("orders"), "123456789012", "orders"),
        ("arn:aws-cn:sqs:cn-north-1:1:a.fifo", "1", "a.fifo"),
        ("arn:aws:sns:us-east-1:123456789012:orders", "", ""),
        ("arn:aws:sqs:us-east-1:123456789012", "", ""),
        ("arn:aws:sqs:us-east-1:123456789012:orders:more", "", ""),
        ("", "", ""),
    ],
)
def test_the_arn_of_a_queue_has_its_account_and_name(text: str, account: str, name: str) -> None:
    queue = queue_arn(text)
    assert (queue.account, queue.name, queue.is_fifo, str(queue)) == (account, name, name.endswith(".fifo"), text)
    assert (queue, hash(queue)) == (QueueArn(text), hash(QueueArn(text)))
    assert queue_arn(7) == queue_arn(None) == QueueArn("")


OF_999 = arn("dlq").replace("123456789012", "999"), "arn:aws:sqs::999:dlq"


@pytest.mark.parametrize(
    ("name", "of_a_queue", "of_none"),
    [
        (arn("dlq"), arn("dlq"), arn("dlq")),
        ("dlq", arn("dlq"), ""),
        ("https://sqs.us-east-1.amazonaws.com/999/dlq", *OF_999),
        ("http://localhost:4566/999/dlq/", *OF_999),
        ("http://localhost/dlq", arn("dlq"), ""),
    ],
)
def test_a_queue_is_named_by_arn_url_or_name(name: str, of_a_queue: str, of_none: str) -> None:
    assert str(named_queue(name, QueueArn(arn("orders")))) == of_a_queue
    assert str(named_queue(name, QueueArn(""))) == of_none
