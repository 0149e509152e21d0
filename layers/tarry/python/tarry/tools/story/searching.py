"""The search for the story of one message in CloudWatch Logs: which log groups, which id, what is not found and why."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tarry.failed.queue_names import listed, resources_of
from tarry.failed.text import coarse, one_line
from tarry.failed.usage import UsageError
from tarry.message.outcomes import State
from tarry.tools.story.events import Story, moment
from tarry.tools.story.lines import LogEntry, ids_in, only_one, read_line, story_of_log

DEFAULT_PREFIX = "/aws/lambda/"
MOST_GROUPS = 50
"""The log groups of one query."""
DAY_SECONDS = 86_400
MISSING: Mapping[str, str] = {
    "WARN": "deferred, released and discarded messages",
    "ERROR": "retries and deferrals",
    "FATAL": "retries, deferrals and dead letters",
}
"""The lines that are missing at each level; the lower levels have all lines of tarry."""


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
    keeps_seconds: float | None = None
    log_class: str = "STANDARD"


def logs_of_stack(cloudformation: Any, aws_lambda: Any, stack: str) -> list[FunctionLog]:
    """Return the logs of the functions of a stack and of its nested stacks. Raises the errors of boto3."""
    found = []
    for each in resources_of(cloudformation, stack):
        if each["ResourceType"] == "AWS::Lambda::Function":
            found.append(log_of(aws_lambda, each["PhysicalResourceId"]))
        elif each["ResourceType"] == "AWS::CloudFormation::Stack":
            found += logs_of_stack(cloudformation, aws_lambda, each["PhysicalResourceId"])
    return found


def log_of(aws_lambda: Any, function: str) -> FunctionLog:
    """Return the log of a function by its name. Raises the errors of boto3."""
    settings = aws_lambda.get_function_configuration(FunctionName=function).get("LoggingConfig") or {}
    level = settings.get("ApplicationLogLevel") or "INFO" if settings.get("LogFormat") == "JSON" else "WARN"
    return FunctionLog(function, settings.get("LogGroup") or f"{DEFAULT_PREFIX}{function}", level)


def existing_groups(logs: Any, names: Iterable[str]) -> dict[str, LogGroup]:
    """Return those of the log groups that exist, by name."""
    found = {}
    for name in dict.fromkeys(names):
        groups = listed(logs, "describe_log_groups", "logGroups", logGroupNamePrefix=name)
        each = next((each for each in groups if each["logGroupName"] == name), None)
        if each is not None:
            days = each.get("retentionInDays")
            keeps = None if days is None else float(days) * DAY_SECONDS
            found[name] = LogGroup(name, keeps, each.get("logGroupClass") or "STANDARD")
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
    if missing := [name for name in names if name not in found]:
        where, are = f" in {region}" if region else "", "does" if len(missing) == 1 else "do"
        raise UsageError(
            f"the log group{'s'[: len(missing) != 1]} {', '.join(missing)} {are} not exist{where}: a group is made at "
            "the first invocation of its function; --stack NAME finds the groups of a stack"
        )


def silences(logs: Iterable[FunctionLog]) -> Iterator[str]:
    """Yield a sentence for each log level that leaves lines out of tarry."""
    by_level: dict[str, list[str]] = {}
    for each in logs:
        by_level.setdefault(each.level, []).append(each.function)
    for level, functions in by_level.items():
        if (missing := MISSING.get(level)) is None:
            continue
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


MOST_RESULTS = 10_000
"""The results of one query; Insights returns no more."""
DOLLARS_PER_GB = 0.005
"""The price of a scan in us-east-1."""
GB = 1_000_000_000
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 2.0
BUSY_SECONDS = 5.0
MOST_BUSY = 12
"""How often a query is started again while too many others run in the account: a minute."""
UNDER_WAY = frozenset({"Scheduled", "Running", "Unknown"})
BUSY = frozenset({"LimitExceededException", "ThrottlingException", "ServiceUnavailableException"})


@dataclass
class SearchResult:
    """The lines that a search has found, and what it cost. ``problems`` say why lines may be missing."""

    entries: list[LogEntry] = field(default_factory=list)
    bytes_scanned: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def cost(self) -> str:
        """How much was scanned, and its price."""
        gigabytes = self.bytes_scanned / GB
        shown = f"{gigabytes:,.2f} GB" if gigabytes >= 0.01 else f"{self.bytes_scanned / 1_000_000:,.2f} MB"
        dollars = gigabytes * DOLLARS_PER_GB
        price = f"${dollars:.2f}" if dollars >= 0.01 else "less than $0.01"
        return f"Scanned {shown} of logs ({price} at $0.005 a GB)."


@dataclass
class LogSearch:
    """Searches in log groups, between two times in epoch seconds.

    ``groups`` are the log groups of each query. ``progress`` is called with a text while a query runs. A query that is
    left by an exception, such as Ctrl-C, is stopped, so that it scans no further.
    """

    logs: Any
    groups: Sequence[Sequence[str]]
    since: float
    until: float
    progress: Callable[[str], None] = lambda text: None
    sleep: Callable[[float], None] = time.sleep
    found: SearchResult = field(default_factory=SearchResult, init=False)
    """All that was found so far."""

    def run(self, text: str) -> None:
        """Find all lines that have a text. Raises `ClientError` if AWS refuses a query."""
        self.run_query(query_for(text))

    def run_query(self, query: str) -> None:
        """Find all lines of a query. Raises the same."""
        for groups in self.groups:
            self._run(groups, query)

    def _run(self, groups: Sequence[str], query: str) -> None:
        query_id = self._start(groups, query)
        answer: Mapping[str, Any] = {"status": "Scheduled"}
        wait = FIRST_WAIT_SECONDS
        try:
            while answer["status"] in UNDER_WAY:
                self.sleep(wait)
                wait = min(LONGEST_WAIT_SECONDS, wait * 2)
                answer = self._answer(query_id) or answer
                scanned = float((answer.get("statistics") or {}).get("bytesScanned") or 0)
                self.progress(f"{str(answer['status']).lower()}, {scanned / GB:,.2f} GB scanned")
        except BaseException:
            self._stop(query_id)
            raise
        self._take(answer)

    def _start(self, groups: Sequence[str], query: str) -> str:
        """Start a query, again and again while too many others run; return its id."""
        period = {"startTime": int(self.since), "endTime": int(self.until) + 1}
        parameters = {"logGroupNames": list(groups), **period, "queryString": query, "limit": MOST_RESULTS}
        busy = 0
        while not (started := _unless_busy(self.logs.start_query, parameters, raises=busy == MOST_BUSY)):
            busy += 1
            self.progress("waiting: too many queries run in this account")
            self.sleep(BUSY_SECONDS)
        return str(started["queryId"])

    def _answer(self, query_id: str) -> Mapping[str, Any] | None:
        """Return the state of a query; None if AWS is too busy to tell."""
        return _unless_busy(self.logs.get_query_results, {"queryId": query_id})

    def _stop(self, query_id: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        with suppress(BotoCoreError, ClientError):  # it has ended, or ends by itself
            self.logs.stop_query(queryId=query_id)

    def _take(self, answer: Mapping[str, Any]) -> None:
        found, results = self.found, answer.get("results") or []
        found.entries += [_entry({each["field"]: each.get("value", "") for each in row}) for row in results]
        found.bytes_scanned += float((answer.get("statistics") or {}).get("bytesScanned") or 0)
        if answer["status"] != "Complete":
            found.problems.append(
                f"CloudWatch ended the query early ({answer['status']}), so lines may be missing: "
                "search less (--since, --group)"
            )
        if len(results) >= MOST_RESULTS:
            found.problems.append(
                f"the query found more than {MOST_RESULTS:,} lines, the later ones are missing: search less "
                "(--since, --group)"
            )


def _unless_busy(
    request: Callable[..., Mapping[str, Any]], parameters: Mapping[str, Any], *, raises: bool = False
) -> Mapping[str, Any] | None:
    """Return the answer to a request; None if AWS refuses it because it is busy, unless that ``raises`` too."""
    from botocore.exceptions import ClientError

    try:
        return request(**parameters)
    except ClientError as error:
        if raises or error.response.get("Error", {}).get("Code") not in BUSY:
            raise
        return None


def query_for(text: str) -> str:
    """Return the query for the lines that have a text."""
    literal = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f'fields @timestamp, @message, @log, @requestId | filter @message like "{literal}" | sort @timestamp asc '
        f"| limit {MOST_RESULTS}"
    )


def _entry(fields: Mapping[str, str]) -> LogEntry:
    group = fields.get("@log", "").partition(":")
    at, text = _seconds(fields.get("@timestamp", "")), fields.get("@message", "")
    return LogEntry(at, text, group[2] or group[0], fields.get("@requestId", ""))


def _seconds(text: str) -> float:
    """Return a time of Insights (UTC), or epoch milliseconds, as epoch seconds."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        pass
    try:
        return float(text) / 1000
    except ValueError:
        return 0.0


LEAST_CHARACTERS = 8
"""The shortest beginning of an id that is searched for in logs; shorter ones are in lines of all kinds."""
LATEST_PATIENCE_SECONDS = 30.0
LATEST = (
    'fields @timestamp, @message, @log, @requestId | filter @message like "dead_lettered message_id=" '
    "| parse @message /dead_letter_queue=(?<tarry_target>\\S+)/ "
    "| sort @timestamp desc | dedup tarry_target | limit 1000"
)
"""The query for the latest line about each dead-letter queue. All formats of logs have the text of the line."""


@dataclass(frozen=True)
class SearchPlace:
    """The log groups to search, and the functions of the stack that they belong to."""

    functions: Sequence[FunctionLog]
    groups: dict[str, LogGroup]
    note: str = ""
    """A sentence about functions that have no log group."""


@dataclass(frozen=True)
class FoundStory:
    """The result of a search, with its cost."""

    story: Story | None
    cost: str
    """How much was scanned, and its price."""
    is_complete: bool
    not_found: str = ""
    """Why there may be no line, for a reader, if there is no story."""


@dataclass(frozen=True)
class LatestErrors:
    """Why the latest message came to each dead-letter queue, by its name, and what the search has cost."""

    errors: dict[str, str]
    cost: str


def places_of(
    client: Callable[[str], Any],
    region: str | None,
    stack: str | None,
    names: Sequence[str] = (),
    functions: Sequence[str] = (),
) -> SearchPlace:
    """Return the existing log groups of the functions of a deployed stack, or of the named ones, and those ``names``.

    ``client`` makes a boto3 client of a service; ``region`` is for errors.

    Raises `UsageError` if the stack has no functions, or a named log group does not exist.
    """
    logs = client("logs")
    found = [log_of(client("lambda"), each) for each in functions]
    if stack is not None:
        found = logs_of_stack(client("cloudformation"), client("lambda"), stack)
        if not found:
            raise UsageError(f"stack {stack} has no functions: name the log groups to search (--log-group NAME)")
    groups = existing_groups(logs, [*names, *(each.group for each in found)])
    check_named(names, groups, region)
    silent = [each.function for each in found if each.group not in groups]
    has = "has" if len(silent) == 1 else "have"
    note = f"{', '.join(silent)} {has} no log group: never invoked, or not allowed to write logs." if silent else ""
    return SearchPlace(found, groups, note)


def latest_errors(logs: Any, place: SearchPlace, sleep: Callable[[float], None] = time.sleep) -> LatestErrors:
    """Search the logs of the last day for the latest message that tarry sent to each dead-letter queue.

    Raises `UsageError` if there is no log group, or the search took too long and was stopped; `ClientError` if AWS
    refuses the query.
    """
    if not place.groups:
        raise UsageError("none of the functions has a log group: no function was ever invoked")
    left = LATEST_PATIENCE_SECONDS

    def wait(seconds: float) -> None:
        nonlocal left
        left -= seconds
        if left < 0:
            raise UsageError(f"the search in logs took more than {LATEST_PATIENCE_SECONDS:.0f} s, and was stopped")
        sleep(seconds)

    now = time.time()
    search = LogSearch(logs, batches(place.groups.values()), now - DAY_SECONDS, now, sleep=wait)
    search.run_query(LATEST)
    errors: dict[str, str] = {}
    for entry in sorted(search.found.entries, key=lambda each: -each.at):
        line = read_line(entry)
        if line is not None and line.state is State.DEAD_LETTERED and (target := line.text("dead_letter_queue")):
            why = one_line(": ".join(filter(None, (line.text("reason"), line.text("error")))))
            errors.setdefault(target, f"{why} ({moment(entry.at)})")
    return LatestErrors(errors, search.found.cost)


def search_logs(
    logs: Any,
    place: SearchPlace,
    message_id: str,
    begin: float,
    progress: Callable[[str], None] = lambda text: None,
    note: Callable[[str], None] = lambda text: None,
) -> FoundStory:
    """Search for a message by its stable id, an id of a copy, or the beginning of one, in at least one log group.

    ``logs`` is a boto3 client of CloudWatch Logs, ``begin`` the time from which lines are searched, in epoch seconds.
    ``progress`` is called with a text while a query runs, ``note`` if another id is searched for.

    Raises `UsageError` if several messages have an id that begins so; `ClientError` if AWS refuses a query.
    """
    now = time.time()
    groups = place.groups
    hints = [
        *silences(each for each in place.functions if each.group in groups),
        *forgotten(groups.values(), begin, now),
    ]
    search = LogSearch(logs, batches(groups.values()), begin, now, progress)
    stable_id = _search(search, message_id, note)
    found, story = search.found, None
    names_of = {each.group: each.function for each in place.functions}
    problems = tuple(f"{text}." for text in found.problems)
    if stable_id is not None:
        story = story_of_log(found.entries, stable_id, now, "CloudWatch Logs", names_of, (*problems, *hints))
    why = "" if story is not None else _not_found(message_id, [*groups], begin, found, hints)
    return FoundStory(story, found.cost, not found.problems, why)


def _search(search: LogSearch, message_id: str, note: Callable[[str], None]) -> str | None:
    """Search for an id; if it is a delivery id, for the stable id that its lines name. Return the stable id."""
    search.run(message_id)
    stable_id = only_one(ids_in(search.found.entries, message_id), message_id)
    if stable_id is not None and not stable_id.startswith(message_id):
        note(f"{message_id} is a copy of message {stable_id}; searching for that.")
        search.found.entries.clear()
        search.run(stable_id)
    return stable_id


def _not_found(message_id: str, groups: Sequence[str], begin: float, found: SearchResult, hints: Sequence[str]) -> str:
    lines = [
        f"no line of tarry since {moment(begin)} names message {message_id}",
        f"Searched: {', '.join(groups)}",
        "Possible reasons:",
        "- it succeeded at its first attempt, which writes no line, or it was not delivered yet",
        "- it failed only in functions that do not use tarry, or SQS moved it",
        "- its lines are older: --since TIME",
        *(f"- {text}" for text in hints),
    ]
    if found.entries:
        count = len(found.entries)
        lines.append(f"- {count:,} other line{'s'[: count != 1]} name{'s' * (count == 1)} it, but none is of tarry")
    return "\n".join(lines)
