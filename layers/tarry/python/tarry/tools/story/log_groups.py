"""The log groups to search: those of a stack's functions, or named ones, and what their logs cannot tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarry.failed.logical_ids import resources_of
from tarry.failed.text import coarse
from tarry.failed.usage import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DEFAULT_PREFIX = "/aws/lambda/"
MOST_GROUPS = 50
"""The log groups of one query."""
DAY_SECONDS = 86_400
LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")


@dataclass(frozen=True)
class FunctionLog:
    """The log of a function. ``level`` is the lowest level that is written: WARN in Lambda's text format."""

    function: str
    group: str
    level: str


@dataclass(frozen=True)
class LogGroup:
    """A log group. ``keeps_seconds`` is its retention; None if lines never expire."""

    name: str
    created_at: float = 0.0
    keeps_seconds: float | None = None
    log_class: str = "STANDARD"


def logs_of_stack(cloudformation: Any, aws_lambda: Any, stack: str) -> list[FunctionLog]:
    """Return the logs of the functions of a stack and of its nested stacks.

    Raises:
        botocore.exceptions.ClientError: AWS refuses a request.
    """
    return [log_of(aws_lambda, function) for function in _functions(cloudformation, stack)]


def _functions(cloudformation: Any, stack: str) -> Iterator[str]:
    for each in resources_of(cloudformation, stack):
        if each["ResourceType"] == "AWS::Lambda::Function":
            yield each["PhysicalResourceId"]
        elif each["ResourceType"] == "AWS::CloudFormation::Stack":
            yield from _functions(cloudformation, each["PhysicalResourceId"])


def log_of(aws_lambda: Any, function: str) -> FunctionLog:
    """Return the log of a function by its name. Raises the errors of boto3."""
    settings = aws_lambda.get_function_configuration(FunctionName=function).get("LoggingConfig") or {}
    level = settings.get("ApplicationLogLevel") or "INFO" if settings.get("LogFormat") == "JSON" else "WARN"
    return FunctionLog(function, settings.get("LogGroup") or f"{DEFAULT_PREFIX}{function}", level)


def existing_groups(logs: Any, names: Iterable[str]) -> dict[str, LogGroup]:
    """Return those of the log groups that exist, by name."""
    found = {}
    for name in dict.fromkeys(names):
        pages = logs.get_paginator("describe_log_groups").paginate(logGroupNamePrefix=name)
        each = next((each for page in pages for each in page["logGroups"] if each["logGroupName"] == name), None)
        if each is not None:
            days = each.get("retentionInDays")
            found[name] = LogGroup(
                name,
                each.get("creationTime", 0) / 1000,
                None if days is None else float(days) * DAY_SECONDS,
                each.get("logGroupClass") or "STANDARD",
            )
    return found


def batches(groups: Iterable[LogGroup]) -> list[list[str]]:
    """Return the names of the log groups of each query: at most 50, and of one log class."""
    by_class: dict[str, list[str]] = {}
    for each in groups:
        by_class.setdefault(each.log_class, []).append(each.name)
    return [
        names[first : first + MOST_GROUPS] for names in by_class.values() for first in range(0, len(names), MOST_GROUPS)
    ]


def check_named(names: Sequence[str], found: Mapping[str, LogGroup], region: str | None) -> None:
    """Raise `UsageError` if one of the named log groups does not exist."""
    missing = [name for name in names if name not in found]
    if missing:
        where = f" in {region}" if region else ""
        are = "does" if len(missing) == 1 else "do"
        raise UsageError(
            f"the log group{'s'[: len(missing) != 1]} {', '.join(missing)} {are} not exist{where}: a group is made at "
            "the first invocation of its function; --stack NAME finds the groups of a stack"
        )


def never_written(logs: Sequence[FunctionLog], found: Mapping[str, LogGroup]) -> str:
    """Return a sentence about functions without a log group; empty if there are none."""
    names = [each.function for each in logs if each.group not in found]
    if not names:
        return ""
    has = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} {has} no log group: never invoked, or not allowed to write logs."


def silences(logs: Iterable[FunctionLog]) -> Iterator[str]:
    """Yield a sentence for each log level that leaves lines out of tarry."""
    by_level: dict[str, list[str]] = {}
    for each in logs:
        by_level.setdefault(each.level, []).append(each.function)
    for level, functions in by_level.items():
        if level not in LEVELS or LEVELS.index(level) <= LEVELS.index("INFO"):
            continue
        missing = "deferred, released and discarded messages" if level == "WARN" else "retries and deferrals"
        if level == "FATAL":
            missing = "retries, deferrals and dead letters"
        verb = "writes" if len(functions) == 1 else "write"
        yield (
            f"{', '.join(functions)} {verb} only lines of level {level} and above, so {missing} leave no line: set "
            "LoggingConfig: {LogFormat: JSON, ApplicationLogLevel: INFO}."
        )


def forgotten(groups: Iterable[LogGroup], since: float, now: float) -> Iterator[str]:
    """Yield a sentence about groups that keep lines for less than the time that is searched."""
    short = [each for each in groups if each.keeps_seconds is not None and now - each.keeps_seconds > since]
    for keeps in sorted({each.keeps_seconds for each in short if each.keeps_seconds is not None}):
        names = ", ".join(each.name for each in short if each.keeps_seconds == keeps)
        yield f"{names}: lines are kept for {coarse(keeps)} only."
