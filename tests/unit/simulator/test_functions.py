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
from tarry.tools.simulator.history import History, HistoryEvent
from tarry.tools.simulator.invocations import InvocationResult
from tarry.tools.simulator.scheduler import START
from tarry.tools.template import TemplateFunction
from tarry.world import World, current
from tests.unit.simulator.conftest import Stage

COLD = 0.5


class FunctionRig:
    """A function of 10 seconds with the results of its invocations and their times."""

    def __init__(self, stage: Stage, handler: Handler, *, cold: float = COLD, **settings: Any) -> None:
        self.stage = stage
        simulation = stage.simulation
        self.history = History(simulation.clock.time)
        random = Random(1)
        self.function = Function(
            simulation,
            handler,
            lambda: World(clock=simulation.clock, random=random, threads=simulation.threads),
            self.history,
            TemplateFunction("", "orders", "", None, None, **{"timeout_seconds": 10, **settings}),
            cold_start_seconds=cold,
        )
        self.results: list[InvocationResult] = []
        self.ended_at: list[float] = []

    def run(self, *at: float, event: Any = None) -> list[InvocationResult]:
        """Invoke the function at these times, each time with the time as event unless one is given."""
        for each in at:
            given = each if event is None else event
            self.stage.scheduler.at(START + each, lambda given=given: self.function.invoke(given, self._take))
        self.stage.scheduler.run()
        return self.results

    @property
    def kinds(self) -> list[str]:
        return [result.kind for result in self.results]

    @property
    def cold(self) -> list[bool]:
        return [event.fields["cold"] for event in self.history.events if event.what == "invoked"]

    def _take(self, result: InvocationResult) -> None:
        self.results.append(result)
        self.ended_at.append(round(self.stage.scheduler.now - START, 6))


MakeRig = Callable[..., FunctionRig]


@pytest.fixture
def make_rig(stage: Stage) -> MakeRig:
    return lambda handler, **settings: FunctionRig(stage, handler, **settings)


NOT_JSON = "Runtime.MarshalError: Unable to marshal response: Object of type set is not JSON serializable"


@pytest.mark.parametrize(
    ("returned", "kind", "value", "text"),
    [
        ({"pair": (1, 2), 3: Decimal("1.5"), "n": Decimal(7)}, "returned", {"pair": [1, 2], "3": 1.5, "n": 7}, ""),
        ({"n": float("nan")}, "returned", '{"n": NaN}', ""),
        ({1, 2}, "error", None, NOT_JSON),
    ],
)
def test_event_and_return_value_are_converted_to_json_and_back(
    make_rig: MakeRig, returned: Any, kind: str, value: Any, text: str
) -> None:
    """A handler cannot change objects of the model, and Lambda gets a list for a tuple."""
    event = {"items": [1, 2]}
    [result] = make_rig(lambda event, context: event["items"].append(3) or returned).run(0, event=event)
    assert event == {"items": [1, 2]}
    assert (result.kind, result.text) == (kind, text)
    if kind == "returned":
        assert result.value == value
        assert result.value is not returned


def charge() -> None:
    raise ValueError("card declined")


def test_an_exception_has_the_payload_of_lambda_and_the_environment_survives(make_rig: MakeRig) -> None:
    orders = make_rig(lambda event, context: charge())
    first, _ = orders.run(0, 5)
    assert (first.kind, first.text) == ("error", "ValueError: card declined")
    assert "in charge" in first.value.pop("stackTrace")[-1]
    assert first.value == {
        "errorMessage": "card declined", "errorType": "ValueError", "requestId": first.request_id,
    }  # fmt: skip
    assert orders.cold == [True, False]


def test_the_context_has_the_attributes_of_lambda(make_rig: MakeRig, stage: Stage) -> None:
    def handler(event: Any, context: Any) -> Any:
        left = [context.get_remaining_time_in_millis()]
        stage.sleep(2.5)
        names = ("function_name", "invoked_function_arn", "memory_limit_in_mb", "aws_request_id", "log_group_name")
        values = [getattr(context, name) for name in (*names, "function_version")]
        return [*left, context.get_remaining_time_in_millis(), *values]

    [result] = make_rig(handler, memory_mb=512).run(0)
    arn = "arn:aws:lambda:us-east-1:123456789012:function:orders"
    assert result.value[:5] == [10_000, 7_500, "orders", arn, "512"]
    assert result.value[5:] == [result.request_id, "/aws/lambda/orders", "$LATEST"]


# environments


def test_concurrent_invocations_have_environments_of_their_own_each_with_one_world_and_one_cold_start(
    make_rig: MakeRig, stage: Stage
) -> None:
    worlds: list[World] = []

    def handler(event: Any, context: Any) -> int:
        worlds.append(current())
        stage.sleep(3)
        return context.get_remaining_time_in_millis()

    orders = make_rig(handler)
    orders.run(0, 0, 0, 5)
    assert len(set(worlds[:3])) == len(set(worlds)) == 3
    assert orders.cold == [True, True, True, False]
    assert orders.ended_at == [COLD + 3] * 3 + [5 + 3]
    assert [each.value for each in orders.results] == [7_000] * 4, "a cold start does not count towards the timeout"


def test_an_idle_environment_is_kept_for_a_while_and_starts_no_new_thread_for_an_invocation(make_rig: MakeRig) -> None:
    threads: set[int] = set()
    orders = make_rig(lambda event, context: threads.add(id(threading.current_thread())))
    orders.run(*range(500), WARM_SECONDS + 499)
    assert (orders.cold, len(threads)) == ([True] + [False] * 500, 1)
    orders.run(3 * WARM_SECONDS)
    assert orders.cold[-1]


def test_environments_are_frozen_between_invocations(make_rig: MakeRig, stage: Stage) -> None:  # PLATFORM 26
    """A thread that outlives its invocation continues in the next one."""

    def handler(event: Any, context: Any) -> None:
        if event:
            stage.sleep(1)
        else:
            stage.simulation.threads.start(stage.sleeper("woken", 5))

    make_rig(handler).run(0, 100)
    assert stage.noted == [("woken", 100)]


# deadlines


def test_at_the_deadline_the_process_is_killed_with_its_threads_whatever_the_handler_catches(
    make_rig: MakeRig, stage: Stage
) -> None:  # PLATFORM 28
    def handler(event: Any, context: Any) -> str:
        stage.simulation.threads.start(stage.sleeper("a thread survived", 10))
        with suppress(BaseException):
            while event:
                with suppress(BaseException):
                    stage.sleep(1)
            stage.sleep(3600)
            stage.note("survived")
        return "all is well"

    orders = make_rig(handler, timeout_seconds=3)
    first = orders.run(0)[0]
    assert (first.kind, first.text) == ("timeout", "Task timed out after 3.00 seconds")
    assert first.value["errorType"] == "Sandbox.Timedout"
    assert (orders.ended_at, stage.now) == ([COLD + 3], COLD + 3)
    orders.run(60, 120)
    assert (orders.kinds, stage.noted) == (["timeout"] * 3, [])


def test_after_a_timeout_or_a_crash_the_cold_start_counts_towards_the_timeout_of_the_next_invocation(
    make_rig: MakeRig, stage: Stage
) -> None:  # PLATFORM 28
    def handler(event: Any, context: Any) -> int:
        left: int = context.get_remaining_time_in_millis()
        stage.sleep(1 if event else 60)
        return left

    orders = make_rig(handler, timeout_seconds=3)
    _, second, third = orders.run(0, 60, 70)
    assert (second.value, third.value) == (2_500, 3_000)
    assert orders.cold == [True, True, False]
    exits = make_rig(lambda event, context: sys.exit(1), timeout_seconds=2, cold=5)
    exits.run(100, 160)
    assert (exits.kinds, exits.ended_at) == (["crash", "timeout"], [105, 162])


# crashes


def raise_base_exception() -> None:
    raise BaseException("no exit")


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (lambda: sys.exit(3), "Runtime exited with error: exit status 3"),
        (lambda: sys.exit("no database"), "Runtime exited with error: exit status 1"),
        (sys.exit, "Runtime exited without providing a reason"),
        (lambda: os._exit(7), "Runtime exited with error: exit status 7"),
        (raise_base_exception, "Runtime exited with error: exit status 1"),
    ],
    ids=["exit", "exit with a text", "exit without a reason", "os._exit", "another exception"],
)
def test_a_handler_that_exits_ends_its_environment(make_rig: MakeRig, end: Callable[[], Any], text: str) -> None:
    orders = make_rig(lambda event, context: "well" if event else end())
    first, second = orders.run(0, 60)
    assert (first.kind, first.text, first.value["errorType"]) == ("crash", text, "Runtime.ExitError")
    assert (second.value, orders.cold) == ("well", [True, True])


def test_an_invocation_can_be_crashed_from_outside_and_from_within(make_rig: MakeRig, stage: Stage) -> None:
    def handler(event: Any, context: Any) -> None:
        if event:
            orders.function.running[0].crash("signal: aborted")
        stage.sleep(5)
        stage.note("survived")

    orders = make_rig(handler)
    stage.scheduler.after(2, lambda: [each.crash() for each in orders.function.running])
    orders.run(0, 60)
    assert [(result.kind, result.text) for result in orders.results] == [
        ("crash", "Runtime exited with error: signal: killed"),
        ("crash", "Runtime exited with error: signal: aborted"),
    ]
    assert (orders.ended_at, stage.noted) == ([2, 60 + COLD], [])


# concurrency, history


@pytest.mark.parametrize(("reserved", "kinds"), [(2, ["throttled", *["returned"] * 3]), (0, ["throttled"] * 4)])
def test_a_function_above_its_concurrency_is_throttled(
    make_rig: MakeRig, stage: Stage, reserved: int, kinds: list[str]
) -> None:
    orders = make_rig(lambda event, context: stage.sleep(5), reserved_concurrency=reserved)
    assert orders.run(0, 0, 1, 30)[0].text == "Rate Exceeded."
    assert orders.kinds == kinds


def test_an_invocation_is_recorded_with_its_messages_and_closing_the_function_ends_it(
    make_rig: MakeRig, stage: Stage
) -> None:
    orders = make_rig(lambda event, context: stage.sleep(1000))
    stage.scheduler.after(5, orders.function.close)
    assert orders.run(0, event={"Records": [{"messageId": "m1"}, {"messageId": "m2"}]}) == []
    [event] = orders.history.events
    assert (event.at, event.what, stage.now) == (START + COLD, "invoked", 5)
    assert event.fields == {
        "function": "orders", "request_id": event.fields["request_id"], "delivery_ids": ["m1", "m2"], "cold": True,
        "deadline": event.at + 10,
    }  # fmt: skip


@pytest.mark.parametrize("keep", [True, False])
def test_a_listener_of_the_history_gets_each_event_or_those_of_some_names_when_it_is_recorded(keep: bool) -> None:
    history, some, everything = History(lambda: 5.0, keep=keep), [], []
    history.record("sent", queue="orders")
    history.listen(everything.append)
    history.listen(some.append, "deleted", "moved")
    history.by = "mapping"
    for what in ("deleted", "received", "moved"):
        history.record(what, queue="orders")
    assert everything[0] == HistoryEvent(5.0, "deleted", {"queue": "orders", "by": "mapping"})
    found = [[event.what for event in events] for events in (history.events, everything, some)]
    assert found == [
        ["sent", "deleted", "received", "moved"] * keep,
        ["deleted", "received", "moved"],
        ["deleted", "moved"],
    ]
