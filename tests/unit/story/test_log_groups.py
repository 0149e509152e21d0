"""The log groups of a stack: those that its functions name, nested stacks included, and what their levels leave out."""

from collections.abc import Iterator
from typing import Any

from tarry.tools.story.searching import FunctionLog, LogGroup, forgotten, logs_of_stack, silences


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
