"""`tarry story`: tell what happened to one message."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from tarry.failed.text import seconds_of
from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import StatusLine, libraries, note, refusals, refuse, renamed
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.tools.cli.options import LOCAL_URL, PROFILE, REGION, REQUIRED, TargetOptions, argument, option
from tarry.tools.common.places import place_text
from tarry.tools.story.events import Story, moment
from tarry.tools.story.searching import LEAST_CHARACTERS, places_of, search_logs

EXAMPLE = """\
tarry story 5f3a2b1c-7d9e-4c1a-9b60-2f8e1d4c7a35
tarry story 5f3a2b1c --stack shop-prod --since 2d
tarry story 5f3a2b1c --log-group /aws/lambda/orders --svg story.svg"""

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/+=-]{0,255}")
SINCE = re.compile(r"(\d+(?:\.\d+)?)(m|h|d|w)")
SECONDS = {"m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
DEFAULT_SINCE = "14d"
"""SQS keeps no message for longer."""


def story(  # noqa: PLR0913 the options of the command
    *,
    message_id: str = argument(
        "ID", "The stable id, or an id that SQS gave to a copy of the message; or its beginning.", REQUIRED
    ),
    stack: str | None = option("--stack NAME", "Search the logs of the functions of a deployed stack."),
    log_group: list[str] | None = option("--log-group NAME", "Search this log group; repeatable."),
    group: list[str] | None = option("--group", "", hidden=True),
    since: str = option(
        "--since TIME", "Search logs from then on: 90m, 36h, 14d, 2w, or a time such as 2026-11-22.", DEFAULT_SINCE
    ),
    svg: Path | None = option("--svg FILE", "Write a picture."),
    as_json: bool = option("--json", "Print the story as one JSON object.", False),
    endpoint_url: str | None = option(
        "--endpoint-url URL",
        "The tarry local to ask, by default the one that runs the template in this directory, or "
        f"{LOCAL_URL}; with --stack or --log-group, an endpoint in the place of AWS.",
    ),
    region: str | None = REGION,
    profile: str | None = PROFILE,
) -> None:
    """Tell what happened to one message: attempts, delays, errors, copies, dead letters.

    Without --stack and --log-group, `tarry local` tells it, or the record that its
    last run has left. With them, the log lines of tarry in CloudWatch Logs tell
    it. Insights bills each search by the logs that it scans.

    A message that succeeds writes no line. If the last line says that the
    message waits, the logs cannot tell whether it was handled since.

    Exit code: 0 found, 1 not found, or the search is incomplete or was refused,
    2 wrong usage.
    """
    if not ID.fullmatch(message_id):
        raise typer.BadParameter(
            f"{message_id!r:.300} is not the id of a message: an id has only letters, digits and _ . : @ / + = -"
        )
    if svg is not None and not svg.absolute().parent.is_dir():
        raise typer.BadParameter(f"--svg {svg}: the directory {svg.parent} does not exist")
    groups = [*(log_group or []), *(renamed("--group", "--log-group", group) or [])]
    if stack is None and not groups:
        if region is not None or profile is not None:
            raise typer.BadParameter("--region and --profile need a place on AWS: add --stack NAME or --log-group NAME")
        found_story, is_whole = _from_tarry_local(message_id, endpoint_url), True
    else:
        if len(message_id) < LEAST_CHARACTERS:
            raise typer.BadParameter(f"give at least {LEAST_CHARACTERS} characters of the id, to search logs for it")
        where = TargetOptions(stack=stack, endpoint_url=endpoint_url, region=region, profile=profile)
        found_story, is_whole = _from_logs(message_id, where, groups, began_at(since, time.time()))
    if svg is not None:
        _write_picture(found_story, svg)
    if as_json:
        typer.echo(json.dumps(found_story.as_json()))
    else:
        _print(found_story)
    raise typer.Exit(0 if is_whole else 1)


def began_at(since: str, now: float) -> float:
    """Return the time from which to search, in epoch seconds, from the value of ``--since``."""
    found = SINCE.fullmatch(since.strip())
    began = now - float(found[1]) * SECONDS[found[2]] if found else seconds_of(since.strip())
    if began is None or math.isinf(began):
        raise typer.BadParameter(
            f"--since must be a time span such as 90m, 36h, 14d or 2w, or a UTC time such as 2026-11-22T03:00, "
            f"got {since!r:.100}"
        )
    if not 0 <= began < now:
        raise typer.BadParameter(f"--since {since}: give a time in the past")
    return began


# tarry local


def _from_tarry_local(message_id: str, endpoint_url: str | None) -> Story:
    with libraries("tarry story", "local"):
        from tarry.tools.local.aws.client import endpoint_of
        from tarry.tools.local.instances import instance_here
        from tarry.tools.local.stories import ask, find_story, last_run
        from tarry.tools.template.finding import find_template

    asked = []
    with refusals():
        url = str(endpoint_of(endpoint_url, os.environ, running=instance_here))
        try:
            found_story = ask(url, message_id)
            note(place_text(url))
            asked.append(f"tarry local at {url} does not know it (it forgets messages that settled long ago)")
        except OSError:
            found_story = None
            asked.append(f"no tarry local answers at {url}")
        if found_story is not None:
            return found_story
        try:
            record = last_run(find_template())
        except UsageError:
            record = None
        if record is None:
            asked.append("there is no record of an earlier run of the template in this directory")
        else:
            found_story = find_story(record.stories, message_id)
            asked.append(f"the record of its last run, until {record.ended_at}, does not have it ({record.path})")
        if found_story is not None and record is not None:
            return replace(found_story, source=f"the last run of {found_story.source}, until {record.ended_at}")
    refuse(
        f"message {message_id} was not found: {'; '.join(asked)}. For a deployed stack: --stack NAME, "
        "for other functions: --log-group NAME",
        1,
    )


# CloudWatch Logs


def _from_logs(message_id: str, where: TargetOptions, names: Sequence[str], begin: float) -> tuple[Story, bool]:
    """Return the story, and whether the search was complete."""
    with libraries("tarry story --stack", "aws,cli"):
        import botocore.exceptions  # noqa: F401
    with refusals(aws=True):
        account, stack = AwsAccess(where), where.stack
        account.say_place("logs")
        place = places_of(account.client, account.region, stack, names)
        note(place.note)
        count = len(place.groups)
        if not count:
            refuse(f"stack {stack} has no function with a log group: no function of it was ever invoked", 1)
        note(f"Searching {count} log group{'s'[: count != 1]} since {moment(begin)}.")
        line = StatusLine()
        try:
            found = search_logs(account.client("logs"), place, message_id, begin, line.show, note)
        finally:
            line.show("")
        note(found.cost)
    if found.story is None:
        refuse(found.not_found, 1)
    return found.story, found.is_complete


# output


def _print(found_story: Story) -> None:
    from tarry.tools.story.text import STYLES, WIDTH, lines_of

    console = Console(highlight=False)
    for line in lines_of(found_story, min(console.width, WIDTH + 40)):
        text = Text(line.text, "dim" if line.is_quiet else "")
        if line.state is not None:
            text.stylize(STYLES.get(line.state, ""), line.begin, line.end)
        console.print(text, soft_wrap=True)


def _write_picture(found_story: Story, path: Path) -> None:
    from tarry.tools.story.picture import picture

    try:
        path.write_text(picture(found_story), encoding="utf-8")
    except OSError as error:
        refuse(f"--svg {path}: {error.strerror or error}")
    note(f"Wrote {path}.")
