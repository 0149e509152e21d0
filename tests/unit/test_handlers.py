"""Plain handlers: functions of one argument, which need no closer check when the consumer is made."""

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import pytest

from tarry import Batch, Message
from tarry.run.handlers import is_plain


def without_annotation(message): ...  # type: ignore[no-untyped-def]


def with_class(message: Message) -> None: ...


def with_text(message: "Message") -> None: ...


def with_batch(batch: Batch) -> None: ...


def with_own_model(message: "Message[dict[str, int]]") -> None: ...


def with_unknown_name(message: "Order") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def with_two(message: Message, more: int = 1) -> None: ...


def with_keyword(message: Message, *, more: int = 1) -> None: ...


def with_nothing() -> None: ...


def method_by_hand(self: Message) -> None: ...


def generator(message: Message) -> Iterator[int]:
    yield 1


@wraps(with_class)
def decorated(*arguments: Any) -> None: ...


@pytest.mark.parametrize("function", [without_annotation, with_class, with_text, lambda message: None])
def test_a_function_of_one_message_is_plain(function: Callable[..., Any]) -> None:  # SPEC B1
    assert is_plain(function, Message)


@pytest.mark.parametrize(
    "function",
    [
        with_batch,
        with_own_model,
        with_unknown_name,
        with_two,
        with_keyword,
        with_nothing,
        method_by_hand,
        generator,
        decorated,
        partial(with_class),
        print,
    ],
)
def test_any_other_handler_is_checked_closely(function: Any) -> None:  # SPEC B1
    assert not is_plain(function, Message)
