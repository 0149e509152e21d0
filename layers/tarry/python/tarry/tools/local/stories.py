"""The stories of the messages of `tarry local`: asked for while it runs, and kept in a file when it ends."""

import json
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tarry.failed.usage import UsageError
from tarry.tools.local.instances import asked, file_of, write_whole
from tarry.tools.story.events import Story, moment, story_from
from tarry.tools.story.lines import only_one

MOST_STORIES = 1_000
MOST_BYTES = 20_000_000
"""The bounds of the file: the latest stories are kept."""
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class Record:
    """The stories of a run that has ended."""

    ended_at: str
    path: Path
    stories: list[Story]


def find_story(stories: Iterable[Story], wanted: str) -> Story | None:
    """Return the story of a message by its stable id, a delivery id, or the beginning of one; None if there is none.

    Raises `UsageError` if several messages have an id that begins so.
    """
    found: dict[str, Story] = {}
    for story in stories:
        ids = {story.id, *(event.delivery_id for event in story.events)}
        if wanted in ids:
            return story
        if wanted and any(each.startswith(wanted) for each in ids):
            found[story.id] = story
    only = only_one(list(found), wanted)
    return None if only is None else found[only]


def ask(url: str, wanted: str) -> Story | None:
    """Return the story of a message from the `tarry local` that runs at a URL; None if it knows no such message.

    Raises `UsageError` if several messages have an id that begins so, `OSError` if no `tarry local` runs there.
    """
    try:
        found = asked(f"{url}/story?{urlencode({'id': wanted})}", PATIENCE_SECONDS)
    except ValueError:
        found = None
    if not isinstance(found, dict) or "story" not in found:
        raise OSError(f"{url} is not the SQS of tarry local")
    if found.get("problem"):
        raise UsageError(str(found["problem"]))
    return None if found["story"] is None else replace(story_from(found["story"]), source=f"tarry local at {url}")


def answer_to(stories: Iterable[Story], wanted: str) -> dict[str, Any]:
    """Return the answer to `ask`."""
    try:
        story = find_story(stories, wanted)
    except UsageError as error:
        return {"story": None, "problem": str(error)}
    return {"story": None if story is None else story.as_json()}


# the file


def keep_stories(template: Path, stories: Iterable[Story]) -> None:
    """Write the stories of a run that ends; a run without messages, or without a place for the file, keeps none."""
    lines, left = [], MOST_BYTES
    for story in [*stories][: -MOST_STORIES - 1 : -1]:
        line = json.dumps(story.as_json())
        left -= len(line)
        if left < 0:
            break
        lines.append(line)
    head = json.dumps({"template": str(template.resolve()), "ended_at": moment(time.time())})
    with suppress(OSError):
        if lines:
            write_whole(_path(template), "\n".join([head, *reversed(lines), ""]))


def last_run(template: Path) -> Record | None:
    """Return the stories of the last run of a template that has ended; None if there is no file."""
    path = _path(template)
    try:
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        return Record(str(json.loads(head)["ended_at"]), path, [story_from(json.loads(line)) for line in lines])
    except (OSError, LookupError, TypeError, ValueError, UsageError):
        return None


def _path(template: Path) -> Path:
    return file_of(template, "stories", ".jsonl")
