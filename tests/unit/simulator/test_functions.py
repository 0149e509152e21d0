"""The model of a Lambda function: environments, timeouts, crashes, throttling."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from tarry.tools.simulator.functions import WARM_SECONDS, Function, Handler
from tarry.tools.simulator.history import History
from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.simulator.scheduler import START
from tarry.tools.simulator.simulation import Simulation
from tarry.tools.template import TemplateFunction
from tarry.world import World, current

COLD = 0.5


class FunctionRig:
    """A function with the results of its invocations and their times."""

    def __init__(
        self, simulation: Simulation, handler: Handler, *, cold_start_seconds: float = COLD, **settings: Any
    ) -> None:
        self.simulation = simulation
        self.history = History(simulation.clock.time)
        random = Random(1)
        self.function = Function(
            simulation,
            handler,
            lambda: World(clock=simulation.clock, random=random, threads=simulation.threads),
            self.history,
            TemplateFunction("", "orders", "", None, None, **{"timeout_seconds": 10, **settings}),
            cold_start_seconds=cold_start_seconds,
        )
        self.results: list[InvocationResult] = []
        self.ended_at: list[float] = []

    def invoke(self, event: Any = None, at: float = 0) -> None:
        self.simulation.scheduler.at(START + at, lambda: self.function.invoke(event or {}, self._take))

    def run(self) -> list[InvocationResult]:
        self.simulation.scheduler.run()
        return self.results

    def cold(self) -> list[bool]:
        return [event.fields["cold"] for event in self.history.events if event.what == "invoked"]

    def _take(self, result: InvocationResult) -> None:
        self.results.append(result)
        self.ended_at.append(round(self.simulation.scheduler.now - START, 6))


MakeRig = Callable[..., FunctionRig]


@pytest.fixture
def make_rig(simulation: Simulation) -> MakeRig:
    return lambda handler, **settings: FunctionRig(simulation, handler, **settings)


@pytest.mark.parametrize(
    ("returned", "kind", "value", "text"),
    [
        (
            {"pair": (1, 2), 3: Decimal("1.5"), "n": Decimal(7)},
            "returned",
            {"pair": [1, 2], "3": 1.5, "n": 7},
            "",
        ),
        ({"n": float("nan")}, "returned", '{"n": NaN}', ""),
        (
            {1, 2},
            "error",
            None,
            "Runtime.MarshalError: Unable to marshal response: Object of type set is not JSON serializable",
        ),
    ],
)
def test_event_and_return_value_are_converted_to_json_and_back(
    make_rig: MakeRig, returned: Any, kind: str, value: Any, text: str
) -> None:
    """A handler cannot change objects of the model, and Lambda gets a list for a tuple."""
    event = {"items": [1, 2]}

    def handler(event: dict[str, Any], context: Any) -> Any:
        event["items"].append(3)
        return returned

    orders = make_rig(handler)
    orders.invoke(event)
    [result] = orders.run()
    assert event == {"items": [1, 2]}
    assert (result.kind, result.text) == (kind, text)
    if kind == "returned":
        assert result.value == value
        assert result.value is not returned


def charge() -> None:
    raise ValueError("card declined")


def test_an_exception_has_the_payload_of_lambda_and_the_environment_survives(make_rig: MakeRig) -> None:
    orders = make_rig(lambda event, context: charge())
    orders.invoke()
    orders.invoke(at=5)
    first, _ = orders.run()
    assert (first.kind, first.text) == ("error", "ValueError: card declined")
    assert first.value["errorMessage"] == "card declined"
    assert first.value["errorType"] == "ValueError"
    assert first.value["requestId"] == first.request_id
    assert "in charge" in first.value["stackTrace"][-1]
    assert orders.cold() == [True, False]


def test_the_context_has_the_attributes_of_lambda(make_rig: MakeRig, simulation: Simulation) -> None:
    def handler(event: Any, context: Any) -> Any:
        left = [context.get_remaining_time_in_millis()]
        simulation.clock.sleep(2.5)
        left.append(context.get_remaining_time_in_millis())
        return {
            "left": left,
            "name": context.function_name,
            "arn": context.invoked_function_arn,
            "memory": context.memory_limit_in_mb,
            "id": context.aws_request_id,
            "group": context.log_group_name,
            "version": context.function_version,
        }

    orders = make_rig(handler, memory_mb=512)
    orders.invoke()
    [result] = orders.run()
    assert result.value == {
        "left": [10_000, 7_500],
        "name": "orders",
        "arn": "arn:aws:lambda:us-east-1:123456789012:function:orders",
        "memory": "512",
        "id": result.request_id,
        "group": "/aws/lambda/orders",
        "version": "$LATEST",
    }


# environments


def test_concurrent_invocations_have_environments_of_their_own_each_with_one_world_and_one_cold_start(
    make_rig: MakeRig, simulation: Simulation
) -> None:
    worlds: list[World] = []
    left: list[int] = []

    def handler(event: Any, context: Any) -> None:
        worlds.append(current())
        left.append(context.get_remaining_time_in_millis())
        simulation.clock.sleep(3)

    orders = make_rig(handler)
    for at in (0, 0, 0, 5):
        orders.invoke(at=at)
    orders.run()
    assert len(set(worlds[:3])) == len(set(worlds)) == 3
    assert orders.cold() == [True, True, True, False]
    assert orders.ended_at == [COLD + 3] * 3 + [5 + 3]
    assert left == [10_000] * 4, "a cold start does not count towards the timeout"


def test_an_idle_environment_is_kept_for_a_while(make_rig: MakeRig) -> None:
    orders = make_rig(lambda event, context: None)
    for at in (0, WARM_SECONDS, 3 * WARM_SECONDS):
        orders.invoke(at=at)
    orders.run()
    assert orders.cold() == [True, False, True]


def test_environments_are_frozen_between_invocations(make_rig: MakeRig, simulation: Simulation) -> None:  # PLATFORM 26
    """A thread that outlives its invocation continues in the next one."""
    woken: list[float] = []

    def left_behind() -> None:
        simulation.clock.sleep(5)
        woken.append(simulation.clock.monotonic())

    def handler(event: Any, context: Any) -> None:
        if event:
            simulation.threads.start(left_behind)
        else:
            simulation.clock.sleep(1)

    orders = make_rig(handler)
    orders.invoke({"first": True})
    orders.invoke(at=100)
    orders.run()
    assert woken == [100]


def test_a_warm_environment_starts_no_new_thread_for_an_invocation(make_rig: MakeRig) -> None:
    threads: set[int] = set()
    orders = make_rig(lambda event, context: threads.add(id(threading.current_thread())))
    orders.invoke()
    orders.run()
    for index in range(500):
        orders.invoke(at=10 + index)
    orders.run()
    assert len(orders.results) == 501
    assert len(threads) == 1


# deadlines


def test_at_the_deadline_the_process_is_killed(make_rig: MakeRig, simulation: Simulation) -> None:  # PLATFORM 28
    survivors: list[str] = []

    def handler(event: Any, context: Any) -> str:
        try:
            simulation.clock.sleep(3600)
            survivors.append("survived")
        finally:
            return "all is well"  # noqa: B012 what a killed handler returns is dropped

    orders = make_rig(handler, timeout_seconds=3)
    orders.invoke()
    [result] = orders.run()
    assert (result.kind, result.text) == ("timeout", "Task timed out after 3.00 seconds")
    assert result.value["errorType"] == "Sandbox.Timedout"
    assert orders.ended_at == [COLD + 3]
    assert simulation.clock.monotonic() == COLD + 3
    assert survivors == []


def test_a_handler_that_catches_every_exception_is_still_killed(make_rig: MakeRig, simulation: Simulation) -> None:
    def handler(event: Any, context: Any) -> str:
        while True:
            with suppress(BaseException):
                simulation.clock.sleep(1)

    orders = make_rig(handler, timeout_seconds=3)
    orders.invoke()
    orders.invoke(at=60)
    assert [result.kind for result in orders.run()] == ["timeout", "timeout"]


def test_threads_of_the_handler_are_killed_with_it(make_rig: MakeRig, simulation: Simulation) -> None:
    survivors: list[str] = []

    def child() -> None:
        simulation.clock.sleep(10)
        survivors.append("survived")

    def handler(event: Any, context: Any) -> None:
        simulation.threads.start(child).join()

    orders = make_rig(handler, timeout_seconds=3)
    orders.invoke()
    orders.invoke(at=60)
    orders.run()
    assert survivors == []


def test_after_a_timeout_the_cold_start_counts_towards_the_timeout_of_the_next_invocation(
    make_rig: MakeRig, simulation: Simulation
) -> None:  # PLATFORM 28
    def handler(event: Any, context: Any) -> int:
        left: int = context.get_remaining_time_in_millis()
        simulation.clock.sleep(event["seconds"])
        return left

    orders = make_rig(handler, timeout_seconds=3)
    orders.invoke({"seconds": 60})
    orders.invoke({"seconds": 1}, at=60)
    orders.invoke({"seconds": 1}, at=70)
    _, second, third = orders.run()
    assert (second.value, third.value) == (2_500, 3_000)
    assert orders.cold() == [True, True, False]


def test_a_cold_start_after_a_crash_that_exceeds_the_timeout_is_a_timeout(make_rig: MakeRig) -> None:
    orders = make_rig(lambda event, context: sys.exit(1), timeout_seconds=2, cold_start_seconds=5)
    orders.invoke()
    orders.invoke(at=60)
    assert [result.kind for result in orders.run()] == ["crash", "timeout"]
    assert orders.ended_at == [5, 62]


# crashes


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (lambda: sys.exit(3), "Runtime exited with error: exit status 3"),
        (lambda: sys.exit("no database"), "Runtime exited with error: exit status 1"),
        (sys.exit, "Runtime exited without providing a reason"),
        (lambda: os._exit(7), "Runtime exited with error: exit status 7"),
    ],
    ids=["exit", "exit with a text", "exit without a reason", "os._exit"],
)
def test_a_handler_that_exits_ends_its_environment(make_rig: MakeRig, end: Callable[[], Any], text: str) -> None:
    orders = make_rig(lambda event, context: end() if event else "well")
    orders.invoke({"exit": True})
    orders.invoke(at=60)
    first, second = orders.run()
    assert (first.kind, first.text) == ("crash", text)
    assert first.value["errorType"] == "Runtime.ExitError"
    assert second.value == "well"
    assert orders.cold() == [True, True]


def test_an_invocation_can_be_crashed_from_outside_and_from_within(make_rig: MakeRig, simulation: Simulation) -> None:
    survivors: list[str] = []

    def handler(event: Any, context: Any) -> None:
        if event:
            orders.function.running[0].crash("signal: aborted")
        simulation.clock.sleep(5)
        survivors.append("survived")

    orders = make_rig(handler)
    orders.invoke()
    simulation.scheduler.run(START + 2)
    orders.function.running[0].crash()
    orders.invoke({"from": "within"}, at=60)
    assert [(result.kind, result.text) for result in orders.run()] == [
        ("crash", "Runtime exited with error: signal: killed"),
        ("crash", "Runtime exited with error: signal: aborted"),
    ]
    assert (orders.ended_at, survivors) == ([2, 60 + COLD], [])


# concurrency


@pytest.mark.parametrize(("reserved", "kinds"), [(2, ["throttled", *["returned"] * 3]), (0, ["throttled"] * 4)])
def test_a_function_above_its_concurrency_is_throttled(
    make_rig: MakeRig, simulation: Simulation, reserved: int, kinds: list[str]
) -> None:
    orders = make_rig(lambda event, context: simulation.clock.sleep(5), reserved_concurrency=reserved)
    for at in (0, 0, 1, 30):
        orders.invoke(at=at)
    assert [result.kind for result in orders.run()] == kinds
    assert orders.results[0].text == "Rate Exceeded."


# history


def test_an_invocation_is_recorded_with_its_messages(make_rig: MakeRig) -> None:
    orders = make_rig(lambda event, context: None)
    orders.invoke({"Records": [{"messageId": "m1"}, {"messageId": "m2"}]})
    [result] = orders.run()
    [event] = orders.history.events
    assert (event.at, event.what) == (START + COLD, "invoked")
    assert event.fields == {
        "function": "orders",
        "request_id": result.request_id,
        "delivery_ids": ["m1", "m2"],
        "cold": True,
        "deadline": event.at + 10,
    }


def test_closing_a_function_ends_its_environments(make_rig: MakeRig, simulation: Simulation) -> None:
    orders = make_rig(lambda event, context: simulation.clock.sleep(1000))
    orders.invoke()
    simulation.scheduler.run(START + 5)
    orders.function.close()
    assert simulation.scheduler.run() == "idle"
    assert (orders.results, simulation.clock.monotonic()) == ([], 5)
