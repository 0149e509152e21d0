"""Searching with CloudWatch Logs Insights: its costs and its ends; the log groups of a stack, and what they lack."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.tools.story.searching import (
    MOST_BUSY,
    MOST_RESULTS,
    FunctionLog,
    LogGroup,
    LogSearch,
    batches,
    forgotten,
    logs_of_stack,
    query_for,
    silences,
)


def error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "StartQuery")


class FakeLogs:
    """CloudWatch Logs with prepared answers; an exception is raised."""

    def __init__(self, *answers: Any, starts: tuple[Any, ...] = ()) -> None:
        self._answers = list(answers)
        self._starts = list(starts)
        self.started: list[dict[str, Any]] = []
        self.stopped: list[str] = []

    def start_query(self, **parameters: Any) -> dict[str, str]:
        if self._starts:
            raise self._starts.pop(0)
        self.started.append(parameters)
        return {"queryId": f"q{len(self.started)}"}

    def get_query_results(self, queryId: str) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop_query(self, queryId: str) -> None:
        self.stopped.append(queryId)
        raise error("InvalidParameterException")  # it has ended


def answer(status: str, *messages: str, scanned: float = 0) -> dict[str, Any]:
    at = {"@timestamp": "2026-11-22 12:00:00.250", "@log": "123456789012:/aws/lambda/orders", "@ptr": "x"}
    found = [{**at, "@message": message} for message in messages]
    rows = [[{"field": name, "value": value} for name, value in each.items()] for each in found]
    return {"status": status, "results": rows, "statistics": {"bytesScanned": scanned}}


class Search(LogSearch):
    """A search of some groups, which has run."""

    def __init__(self, logs: FakeLogs, groups: int = 1) -> None:
        self.slept: list[float] = []
        self.said: list[str] = []
        names = batches(LogGroup(f"f{number}", log_class="RARE" if number == 7 else "A") for number in range(groups))
        super().__init__(logs, names, 1_000.9, 2_000.1, self.said.append, self.slept.append)
        self.run("5f3a2b1c")


def test_a_query_is_waited_for_and_its_lines_and_cost_are_reported() -> None:
    logs = FakeLogs(
        answer("Scheduled"),
        answer("Running", "partial", scanned=5e8),
        error("ThrottlingException"),
        answer("Complete", "a", "b", scanned=2.5e10),
    )
    run = Search(logs)
    found = run.found
    assert [(each.at, each.text, each.group) for each in found.entries] == [
        (1_795_348_800.25, "a", "/aws/lambda/orders"),
        (1_795_348_800.25, "b", "/aws/lambda/orders"),
    ]
    assert found.cost == "Scanned 25.00 GB of logs ($0.12 at $0.005 a GB)."
    assert found.problems == []
    assert run.slept == [0.5, 1.0, 2.0, 2.0]
    assert run.said[1] == "running, 0.50 GB scanned"
    [started] = logs.started
    assert (started["startTime"], started["endTime"], started["limit"]) == (1_000, 2_001, MOST_RESULTS)
    assert logs.stopped == []


def test_a_query_has_at_most_50_groups_of_one_class() -> None:
    logs = FakeLogs(*[answer("Complete", "a", scanned=1e6) for _ in range(4)])
    found = Search(logs, groups=102).found
    assert [len(each["logGroupNames"]) for each in logs.started] == [50, 50, 1, 1]
    assert len(found.entries) == 4
    assert found.cost == "Scanned 4.00 MB of logs (less than $0.01 at $0.005 a GB)."


@pytest.mark.parametrize("status", ["Timeout", "Failed", "Cancelled"])
def test_what_a_query_found_before_it_ended_early_is_kept_and_called_incomplete(status: str) -> None:
    found = Search(FakeLogs(answer(status, "a"))).found
    assert len(found.entries) == 1
    assert found.problems == [
        f"CloudWatch ended the query early ({status}), so lines may be missing: search less (--since, --group)"
    ]


def test_more_lines_than_a_query_returns_are_called_incomplete() -> None:
    found = Search(FakeLogs(answer("Complete", *["a"] * MOST_RESULTS))).found
    assert "more than 10,000 lines" in found.problems[0]


def test_a_query_is_started_again_while_too_many_run_and_given_up_in_the_end() -> None:
    busy = tuple(error("LimitExceededException") for _ in range(MOST_BUSY))
    assert Search(FakeLogs(answer("Complete", "a"), starts=busy)).found.entries
    with pytest.raises(ClientError, match="LimitExceeded"):
        Search(FakeLogs(starts=(*busy, busy[0])))
    denied = FakeLogs(starts=(error("AccessDeniedException"),))
    with pytest.raises(ClientError, match="AccessDenied"):
        Search(denied)


def test_a_query_that_is_interrupted_is_stopped() -> None:
    for raised in (KeyboardInterrupt(), error("AccessDeniedException")):
        logs = FakeLogs(answer("Running"), raised)
        with pytest.raises(type(raised)):
            Search(logs)
        assert logs.stopped == ["q1"]


def test_no_text_ends_the_query_that_it_is_in() -> None:
    assert 'like "a\\"| fields \\\\" | sort' in query_for('a"| fields \\')


# log groups


class FakeStacks:
    """A stack with a nested stack, and the settings of its functions."""

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_stack_resources"
        return self

    def paginate(self, StackName: str) -> Iterator[dict[str, Any]]:
        nested = {"ResourceType": "AWS::CloudFormation::Stack", "PhysicalResourceId": "nested"}
        failed = {"ResourceType": "AWS::Lambda::Function"}
        function = {"ResourceType": "AWS::Lambda::Function", "PhysicalResourceId": f"{StackName}-orders"}
        queue = {"ResourceType": "AWS::SQS::Queue", "PhysicalResourceId": "https://sqs/orders"}
        yield {"StackResourceSummaries": [queue, function, failed]}
        yield {"StackResourceSummaries": [nested] if StackName == "shop" else []}

    def get_function_configuration(self, FunctionName: str) -> dict[str, Any]:
        own = {"LogFormat": "JSON", "ApplicationLogLevel": "ERROR", "LogGroup": "/shop/orders"}
        return {"LoggingConfig": own} if FunctionName == "shop-orders" else {}


def test_a_function_may_name_its_log_group_and_a_stack_may_have_stacks() -> None:
    stacks = FakeStacks()
    logs = logs_of_stack(stacks, stacks, "shop")
    assert logs == [
        FunctionLog("shop-orders", "/shop/orders", "ERROR"),
        FunctionLog("nested-orders", "/aws/lambda/nested-orders", "WARN"),
    ]
    first, second = silences([*logs, FunctionLog("all", "g", "INFO"), FunctionLog("more", "g", "DEBUG")])
    assert first.startswith("shop-orders writes only lines of level ERROR and above, so retries and deferrals leave no")
    assert second.startswith("nested-orders writes only lines of level WARN and above, so deferred, released")


def test_groups_that_keep_lines_for_less_than_the_searched_time_are_named() -> None:
    groups = [LogGroup("a", keeps_seconds=86_400), LogGroup("b", keeps_seconds=9e6), LogGroup("c")]
    assert [*forgotten(groups, since=0, now=8e6)] == ["a: lines are kept for 1 d only."]
