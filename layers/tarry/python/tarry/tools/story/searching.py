"""The search for the story of one message in CloudWatch Logs: which log groups, which id, what is not found and why."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarry.failed.text import one_line
from tarry.failed.usage import UsageError
from tarry.message.outcomes import State
from tarry.tools.story.events import Story, moment
from tarry.tools.story.from_log import ids_in, only_one, story_of_log
from tarry.tools.story.insights import LogSearch
from tarry.tools.story.lines import read_line
from tarry.tools.story.log_groups import (
    batches,
    check_named,
    existing_groups,
    forgotten,
    log_of,
    logs_of_stack,
    never_written,
    silences,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.tools.story.insights import SearchResult
    from tarry.tools.story.log_groups import FunctionLog, LogGroup

LEAST_CHARACTERS = 8
"""The shortest beginning of an id that is searched for in logs; shorter ones are in lines of all kinds."""
SOURCE = "CloudWatch Logs"


LATEST_SECONDS = 86_400.0
"""The time in which the latest errors are searched."""
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
    """Return the log groups of a stack's functions, and the named ones, that exist.

    Args:
        client: Makes a boto3 client of a service.
        region: The region, for errors.
        stack: The name of a deployed stack.
        names: The names of other log groups.
        functions: The names of functions, without a stack.

    Raises:
        UsageError: The stack has no functions, none of them was ever invoked, or a named log group does not exist.
    """
    logs = client("logs")
    found = [log_of(client("lambda"), each) for each in functions]
    if stack is not None:
        found = logs_of_stack(client("cloudformation"), client("lambda"), stack)
        if not found:
            raise UsageError(f"stack {stack} has no functions: name the log groups to search (--log-group NAME)")
    groups = existing_groups(logs, [*names, *(each.group for each in found)])
    check_named(names, groups, region)
    return SearchPlace(found, groups, never_written(found, groups))


def latest_errors(logs: Any, place: SearchPlace, sleep: Callable[[float], None] = time.sleep) -> LatestErrors:
    """Search the logs of the last day for the latest message that tarry sent to each dead-letter queue.

    Raises:
        UsageError: There is no log group, or the search took too long and was stopped.
        botocore.exceptions.ClientError: AWS refuses the query.
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
    search = LogSearch(logs, batches(place.groups.values()), now - LATEST_SECONDS, now, sleep=wait)
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
    """Search for a message by its stable id, an id of a copy, or the beginning of one.

    Args:
        logs: A boto3 client of CloudWatch Logs.
        place: The log groups; at least one.
        message_id: The id.
        begin: The time from which lines are searched, in epoch seconds.
        progress: Called with a text while a query runs.
        note: Called if another id is searched for.

    Raises:
        UsageError: Several messages have an id that begins so.
        botocore.exceptions.ClientError: AWS refuses a query.
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
        story = story_of_log(found.entries, stable_id, now, SOURCE, names_of, (*problems, *hints))
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
