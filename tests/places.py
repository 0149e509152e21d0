"""Functions that each raise an error at another kind of place, and the fingerprints of these errors.

Only the standard library and `tarry.message.diagnosis` are imported, so that any interpreter can run this module. The
names and bodies of the functions decide the fingerprints; where the functions stand in the file does not.
"""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tarry.message.diagnosis import fingerprint


class Declined(Exception):
    """The error that `decline` raises."""


def decline(*_: object, **__: object) -> Any:
    raise Declined("order 4711 was declined")


def a_call_of_several_lines() -> None:
    decline(
        1,
        2,
        order=3,
    )


def a_list_comprehension() -> None:
    [decline(number) for number in (1, 2)]


def comprehensions_of_several_lines() -> None:
    {
        outer: {
            decline(inner)
            for inner in (1,)
        }
        for outer in (1,)
    }  # fmt: skip


def a_generator_within_a_comprehension() -> None:
    [
        sum(decline(inner) for inner in (1,))
        for outer in (1,)
    ]  # fmt: skip


def a_comprehension_within_a_lambda() -> None:
    bound(lambda: [
        decline(number)
        for number in (1,)
    ])()  # fmt: skip


def a_lambda_called_by_a_library() -> None:
    json.loads('{"a": 1}', object_hook=lambda _: decline())


def the_body_of_a_class() -> None:
    class _Body:
        numbers = tuple([decline(number) for number in (1,)])


def bound(function: Callable[[], object]) -> Callable[[], None]:
    @functools.wraps(function)
    def wrapper() -> None:
        function()

    return wrapper


@bound
@bound
def decorators() -> None:
    decline()


@dataclass
class Order:
    number: int = 1

    def __post_init__(self) -> None:
        decline()


def a_dataclass() -> None:
    Order(7)


@contextmanager
def converting() -> Any:
    try:
        yield
    except Declined as error:
        raise ValueError("converted") from error


def a_context_manager() -> None:
    with converting():
        decline()


def a_finally() -> None:
    try:
        pass
    finally:
        decline()


def an_error_raised_again() -> None:
    try:
        decline()
    except Declined:
        raise


def a_library() -> None:
    json.loads(
        "{",
    )


def a_syntax_error() -> None:
    compile("def handler(:", "a.py", "exec")


def a_module_that_is_not_there() -> None:
    import no_such_module  # type: ignore[import-not-found] # noqa: F401


def generated_code() -> None:
    exec("number = 1\nnumber / 0")


def a_group() -> None:
    raise ExceptionGroup("several", [ValueError(1), Declined(2)])


async def later() -> None:
    decline()


def run(steps: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await steps()

    asyncio.run(main())


def a_task_group() -> None:
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(later())
            group.create_task(asyncio.sleep(60))

    run(both)


def gathered() -> None:
    async def both() -> None:
        await asyncio.gather(
            *[later() for _ in range(2)],
        )

    run(both)


def an_asynchronous_comprehension() -> None:
    async def numbers() -> Any:
        yield 1

    async def each() -> None:
        [
            await later()  # type: ignore[func-returns-value]
            async for number in numbers()
        ]  # fmt: skip

    run(each)


def an_endless_recursion() -> None:
    def again() -> None:
        again()

    again()


PLACES: tuple[Callable[[], None], ...] = (
    a_call_of_several_lines, a_list_comprehension, comprehensions_of_several_lines, a_generator_within_a_comprehension,
    a_comprehension_within_a_lambda, a_lambda_called_by_a_library, the_body_of_a_class, decorators, a_dataclass,
    a_context_manager, a_finally, an_error_raised_again, a_library, a_syntax_error, a_module_that_is_not_there,
    generated_code, a_group, a_task_group, gathered, an_asynchronous_comprehension, an_endless_recursion,
)  # fmt: skip


def fingerprints() -> dict[str, str]:
    """Return the fingerprints by the names of the places."""
    return {place.__name__: _fingerprint_at(place) for place in PLACES}


def _fingerprint_at(place: Callable[[], None]) -> str:
    try:
        place()
    except BaseException as error:  # noqa: BLE001 it is fingerprinted
        trace = error.__traceback__
        return fingerprint(error.with_traceback(trace and trace.tb_next))  # from the place on, as from a handler
    raise AssertionError(f"{place.__name__} raised nothing")
