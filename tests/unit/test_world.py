"""The world a consumer runs in."""

from random import Random
from typing import Any

from tarry import Message, consumer
from tarry.world import WallClock, World, use
from tests.records import Context, batch_of


def test_a_world_after_a_cold_start_has_what_it_was_made_of_and_nothing_that_it_kept() -> None:
    clock, random = WallClock(), Random(1)
    world = World(clock, random, client_factory=object)
    kept = world.keep(lambda here: object())
    assert world.first_time("said")

    fresh = world.afresh()
    assert (fresh.clock, fresh.random, fresh.client_factory) == (clock, random, object)
    assert fresh.keep(lambda here: "new") == "new" != kept
    assert fresh.first_time("said")
    assert not world.first_time("said")


def test_a_world_may_run_another_consumer_in_the_place_of_the_one_that_was_called() -> None:
    """So a simulation sees the runs of a consumer that is called below a decorator."""
    asked: list[Any] = []
    ran: list[str] = []

    @consumer
    def handler(message: Message) -> None:
        ran.append("handler")

    @consumer
    def watched(message: Message) -> None:
        ran.append("watched")

    def watch(called: Any) -> Any:
        asked.append(called)
        return watched

    with use(World(watch=watch)):
        assert handler(batch_of(2), Context()) == {"batchItemFailures": []}
    assert (asked, ran) == ([handler], ["watched", "watched"])
