"""The world: the clock, random source and client factory of a consumer."""

import runpy
import threading
from random import Random
from typing import Any

import pytest

from tarry import Message, consumer, world
from tarry.world import WHOLE_CORE, WallClock, World, use
from tests.records import Context, batch_of


def test_a_world_after_a_cold_start_keeps_its_settings_and_none_of_its_cached_values() -> None:
    clock, random = WallClock(), Random(1)
    world = World(clock, random, client_factory=object)
    kept = world.keep(lambda here: object())
    assert world.first_time("warned")

    fresh = world.afresh()
    assert (fresh.clock, fresh.random, fresh.client_factory) == (clock, random, object)
    assert fresh.keep(lambda here: "new") == "new" != kept
    assert fresh.first_time("warned")
    assert not world.first_time("warned")


def test_making_one_object_of_a_world_does_not_delay_another() -> None:
    """The SQS client takes long to make, in a thread; the main thread must not wait for it."""
    world, made, may_end = World(), threading.Event(), threading.Event()

    def slow(_: World) -> str:
        made.set()
        return "slow" if may_end.wait(60) else ""

    thread = threading.Thread(target=world.keep, args=(slow,))
    thread.start()
    made.wait(60)
    assert world.keep(lambda _: "fast") == "fast"
    may_end.set()
    thread.join()
    assert world.keep(slow) == "slow"


def test_a_world_may_run_another_consumer_instead_of_the_one_that_was_called() -> None:
    """So a simulation sees the runs of a consumer that a decorator wraps."""
    called_consumers: list[Any] = []
    ran: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        ran.append("handler")

    @consumer
    def watched(message: Message) -> None:
        ran.append("watched")

    def watch(called: Any) -> Any:
        called_consumers.append(called)
        return watched

    with use(World(watch=watch)):
        assert handler(batch_of(2), Context()) == {"batchItemFailures": []}
    assert (called_consumers, ran) == ([handler], ["watched", "watched"])


@pytest.mark.parametrize(
    ("variables", "share"),
    [
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "1769"}, 1),
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "3008"}, 1),
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128"}, 128 / 1_769),
        ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128", WHOLE_CORE: "1"}, 1),
        ({}, 512 / 1_769),
    ],
)
def test_a_function_has_a_whole_core_with_1769_mb_and_less_of_one_with_less(
    variables: dict[str, str], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I2
    for name in ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", WHOLE_CORE):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert runpy.run_path(world.__file__)["CORE_SHARE"] == share
