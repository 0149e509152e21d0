"""Lambda: environments, deadlines, crashes, throttles."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from tarry.simulator.functions import WARM_SECONDS, Function, FunctionSettings, Handler
from tarry.simulator.history import History
from tarry.simulator.invocations import InvocationResult
from tarry.simulator.stage import Stage
from tarry.simulator.timeline import START
from tarry.world import World, current

COLD = 0.5


class Host:
    """A function, what it answered, and when."""

    def __init__(self, stage: Stage, handler: Handler, **settings: Any) -> None:
        self.stage = stage
        self.history = History(stage.clock.time)
        random = Random(1)
        settings = {"name": "orders", "timeout_seconds": 10, "cold_start_seconds": COLD, **settings}
        self.function = Function(
            stage,
            handler,
            lambda: World(clock=stage.clock, random=random, threads=stage.threads),
            self.history,
            FunctionSettings(**settings),
        )
        self.answers: list[InvocationResult] = []
        self.answered_at: list[float] = []

    def invoke(self, event: Any = None, at: float = 0) -> None:
        self.stage.timeline.at(START + at, lambda: self.function.invoke(event or {}, self._take))

    def run(self) -> list[InvocationResult]:
        self.stage.timeline.run()
        return self.answers

    def cold(self) -> list[bool]:
        return [event.fields["cold"] for event in self.history.events if event.what == "invoked"]

    def _take(self, answer: InvocationResult) -> None:
        self.answers.append(answer)
        self.answered_at.append(round(self.stage.timeline.now - START, 6))


@pytest.fixture
def host(stage: Stage) -> Callable[..., Host]:
    return lambda handler, **settings: Host(stage, handler, **settings)


Make = Callable[..., Host]


def test_a_handler_gets_its_event_and_its_result_is_the_answer(host: Make) -> None:
    orders = host(lambda event, context: {"got": event["n"]})
    orders.invoke({"n": 1})
    [answer] = orders.run()
    assert (answer.kind, answer.value, answer.text) == ("returned", {"got": 1}, "")


def test_event_and_result_go_through_json(host: Make) -> None:
    """So a handler cannot change what is the model's, and a tuple is a list to Lambda."""
    event = {"items": [1, 2]}
    kept: list[Any] = []

    def handler(event: dict[str, Any], context: Any) -> Any:
        event["items"].append(3)
        result = {"pair": (1, 2), 3: Decimal("1.5"), "n": Decimal(7)}
        kept.append(result)
        return result

    orders = host(handler)
    orders.invoke(event)
    [answer] = orders.run()
    assert event == {"items": [1, 2]}
    assert answer.value == {"pair": [1, 2], "3": 1.5, "n": 7}
    assert answer.value is not kept[0]


def test_a_result_that_is_no_valid_json_stays_text(host: Make) -> None:
    orders = host(lambda event, context: {"n": float("nan")})
    orders.invoke()
    assert orders.run()[0].value == '{"n": NaN}'


def test_a_result_that_cannot_be_written_is_an_error(host: Make) -> None:
    orders = host(lambda event, context: {1, 2})
    orders.invoke()
    [answer] = orders.run()
    expected = "Runtime.MarshalError: Unable to marshal response: Object of type set is not JSON serializable"
    assert (answer.kind, answer.text) == ("error", expected)


def charge() -> None:
    raise ValueError("card declined")


def test_an_error_is_answered_as_lambda_answers_it_and_the_environment_lives(host: Make) -> None:
    orders = host(lambda event, context: charge())
    orders.invoke()
    orders.invoke(at=5)
    first, _ = orders.run()
    assert (first.kind, first.text) == ("error", "ValueError: card declined")
    assert first.value["errorMessage"] == "card declined"
    assert first.value["errorType"] == "ValueError"
    assert first.value["requestId"] == first.request_id
    assert "in charge" in first.value["stackTrace"][-1]
    assert orders.cold() == [True, False]


def test_the_context_says_what_lambda_says(host: Make, stage: Stage) -> None:
    def handler(event: Any, context: Any) -> Any:
        left = [context.get_remaining_time_in_millis()]
        stage.clock.sleep(2.5)
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

    orders = host(handler, memory_mb=512)
    orders.invoke()
    [answer] = orders.run()
    assert answer.value == {
        "left": [10_000, 7_500],
        "name": "orders",
        "arn": "arn:aws:lambda:us-east-1:123456789012:function:orders",
        "memory": "512",
        "id": answer.request_id,
        "group": "/aws/lambda/orders",
        "version": "$LATEST",
    }


# environments


def test_the_first_invocation_waits_for_the_cold_start_and_the_next_does_not(host: Make) -> None:
    orders = host(lambda event, context: None)
    orders.invoke()
    orders.invoke(at=5)
    orders.run()
    assert orders.cold() == [True, False]
    assert orders.answered_at == [COLD, 5]


def test_a_cold_start_is_not_on_the_functions_own_time(host: Make) -> None:
    orders = host(lambda event, context: context.get_remaining_time_in_millis(), timeout_seconds=1)
    orders.invoke()
    assert orders.run()[0].value == 1000


def test_an_environment_has_one_world_for_all_its_invocations(host: Make) -> None:
    worlds: list[World] = []
    orders = host(lambda event, context: worlds.append(current()))
    orders.invoke()
    orders.invoke(at=5)
    orders.run()
    assert len(set(worlds)) == 1


def test_invocations_side_by_side_have_environments_of_their_own(host: Make, stage: Stage) -> None:
    worlds: list[World] = []

    def handler(event: Any, context: Any) -> None:
        worlds.append(current())
        stage.clock.sleep(3)

    orders = host(handler)
    for _ in range(3):
        orders.invoke()
    orders.run()
    assert len(set(worlds)) == 3
    assert orders.answered_at == [COLD + 3] * 3


def test_an_environment_without_work_is_kept_a_while(host: Make) -> None:
    orders = host(lambda event, context: None)
    for at in (0, WARM_SECONDS, 3 * WARM_SECONDS):
        orders.invoke(at=at)
    orders.run()
    assert orders.cold() == [True, False, True]


def test_environments_are_frozen_between_invocations(host: Make, stage: Stage) -> None:  # PLATFORM 26
    """A thread that outlives its invocation wakes up in the next one."""
    woken: list[float] = []

    def left_behind() -> None:
        stage.clock.sleep(5)
        woken.append(stage.clock.monotonic())

    def handler(event: Any, context: Any) -> None:
        if event:
            stage.threads.start(left_behind)
        else:
            stage.clock.sleep(1)

    orders = host(handler)
    orders.invoke({"first": True})
    orders.invoke(at=100)
    orders.run()
    assert woken == [100]


def test_an_invocation_costs_no_new_thread_in_a_warm_environment(host: Make) -> None:
    threads: set[int] = set()
    orders = host(lambda event, context: threads.add(id(threading.current_thread())))
    orders.invoke()
    orders.run()
    for index in range(500):
        orders.invoke(at=10 + index)
    orders.run()
    assert len(orders.answers) == 501
    assert len(threads) == 1


# deadlines


def test_at_the_deadline_the_process_is_killed(host: Make, stage: Stage) -> None:  # PLATFORM 28
    told: list[str] = []

    def handler(event: Any, context: Any) -> None:
        stage.clock.sleep(3600)
        told.append("survived")

    orders = host(handler, timeout_seconds=3)
    orders.invoke()
    [answer] = orders.run()
    assert (answer.kind, answer.text) == ("timeout", "Task timed out after 3.00 seconds")
    assert answer.value["errorType"] == "Sandbox.Timedout"
    assert orders.answered_at == [COLD + 3]
    assert stage.clock.monotonic() == COLD + 3
    assert told == []


def test_a_handler_that_catches_everything_is_killed_all_the_same(host: Make, stage: Stage) -> None:
    def handler(event: Any, context: Any) -> str:
        while True:
            with suppress(BaseException):
                stage.clock.sleep(1)

    orders = host(handler, timeout_seconds=3)
    orders.invoke()
    orders.invoke(at=60)
    assert [answer.kind for answer in orders.run()] == ["timeout", "timeout"]


def test_what_a_killed_handler_returns_is_nobodys_answer(host: Make, stage: Stage) -> None:
    def handler(event: Any, context: Any) -> str:
        with suppress(BaseException):
            stage.clock.sleep(60)
        return "all is well"

    orders = host(handler, timeout_seconds=3)
    orders.invoke()
    assert [answer.kind for answer in orders.run()] == ["timeout"]


def test_threads_of_the_handler_are_killed_with_it(host: Make, stage: Stage) -> None:
    told: list[str] = []

    def child() -> None:
        stage.clock.sleep(10)
        told.append("survived")

    def handler(event: Any, context: Any) -> None:
        stage.threads.start(child).join()

    orders = host(handler, timeout_seconds=3)
    orders.invoke()
    orders.invoke(at=60)
    orders.run()
    assert told == []


def test_after_a_timeout_the_next_invocation_pays_for_the_start_in_its_own_time(
    host: Make, stage: Stage
) -> None:  # PLATFORM 28
    def handler(event: Any, context: Any) -> int:
        left: int = context.get_remaining_time_in_millis()
        stage.clock.sleep(event["seconds"])
        return left

    orders = host(handler, timeout_seconds=3)
    orders.invoke({"seconds": 60})
    orders.invoke({"seconds": 1}, at=60)
    orders.invoke({"seconds": 1}, at=70)
    _, second, third = orders.run()
    assert (second.value, third.value) == (2_500, 3_000)
    assert orders.cold() == [True, True, False]


def test_a_start_after_a_crash_that_outlasts_the_timeout_is_a_timeout(host: Make) -> None:
    orders = host(lambda event, context: sys.exit(1), timeout_seconds=2, cold_start_seconds=5)
    orders.invoke()
    orders.invoke(at=60)
    assert [answer.kind for answer in orders.run()] == ["crash", "timeout"]
    assert orders.answered_at == [5, 62]


# crashes


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (lambda: sys.exit(3), "Runtime exited with error: exit status 3"),
        (lambda: sys.exit("no database"), "Runtime exited with error: exit status 1"),
        (sys.exit, "Runtime exited without providing a reason"),
        (lambda: os._exit(7), "Runtime exited with error: exit status 7"),
    ],
    ids=["exit", "exit with a text", "exit without a word", "os._exit"],
)
def test_a_handler_that_exits_ends_its_environment(host: Make, end: Callable[[], Any], text: str) -> None:
    orders = host(lambda event, context: end() if event else "well")
    orders.invoke({"exit": True})
    orders.invoke(at=60)
    first, second = orders.run()
    assert (first.kind, first.text) == ("crash", text)
    assert first.value["errorType"] == "Runtime.ExitError"
    assert second.value == "well"
    assert orders.cold() == [True, True]


def test_an_invocation_can_be_crashed_from_outside(host: Make, stage: Stage) -> None:
    told: list[str] = []

    def handler(event: Any, context: Any) -> None:
        stage.clock.sleep(5)
        told.append("survived")

    orders = host(handler)
    orders.invoke()
    stage.timeline.run(START + 2)
    orders.function.running[0].crash()
    [answer] = orders.run()
    assert (answer.kind, answer.text) == ("crash", "Runtime exited with error: signal: killed")
    assert (orders.answered_at, told) == ([2], [])


def test_an_invocation_can_be_crashed_from_within(host: Make) -> None:
    told: list[str] = []

    def handler(event: Any, context: Any) -> None:
        orders.function.running[0].crash("signal: aborted")
        told.append("survived")

    orders = host(handler)
    orders.invoke()
    [answer] = orders.run()
    assert (answer.kind, answer.text, told) == ("crash", "Runtime exited with error: signal: aborted", [])


def test_code_that_knows_only_the_stage_can_crash_the_process_it_runs_in(host: Make, stage: Stage) -> None:
    """Where faults live: in the transport of a request."""
    orders = host(lambda event, context: stage.actors.crash())
    orders.invoke()
    assert [answer.kind for answer in orders.run()] == ["crash"]


# concurrency


def test_beyond_its_concurrency_a_function_is_throttled(host: Make, stage: Stage) -> None:
    orders = host(lambda event, context: stage.clock.sleep(5), concurrency=2)
    for at in (0, 0, 1, 30):
        orders.invoke(at=at)
    kinds = [answer.kind for answer in orders.run()]
    assert kinds == ["throttled", "returned", "returned", "returned"]
    assert orders.answers[0].text == "Rate Exceeded."


def test_a_function_without_concurrency_runs_nothing(host: Make) -> None:
    orders = host(lambda event, context: None, concurrency=0)
    orders.invoke()
    assert [answer.kind for answer in orders.run()] == ["throttled"]


# history


def test_what_was_invoked_is_recorded_with_its_messages(host: Make) -> None:
    orders = host(lambda event, context: None)
    orders.invoke({"Records": [{"messageId": "m1"}, {"messageId": "m2"}]})
    [answer] = orders.run()
    [event] = orders.history.events
    assert (event.at, event.what) == (START + COLD, "invoked")
    assert event.fields == {
        "function": "orders",
        "request_id": answer.request_id,
        "delivery_ids": ["m1", "m2"],
        "cold": True,
        "deadline": event.at + 10,
    }


def test_closing_a_function_ends_its_environments(host: Make, stage: Stage) -> None:
    orders = host(lambda event, context: stage.clock.sleep(1000))
    orders.invoke()
    stage.timeline.run(START + 5)
    orders.function.close()
    assert stage.timeline.run() == "idle"
    assert (orders.answers, stage.clock.monotonic()) == ([], 5)
