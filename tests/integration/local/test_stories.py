"""`tarry story` of messages that `tarry local` has run: from the record of its last run.  # SPEC L6

A running `tarry local` is asked in test_cloud.py.
"""

import json
import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tarry.message.outcomes import State
from tarry.tools.cli.app import app
from tarry.tools.local.instances import directory
from tarry.tools.local.stories import MOST_STORIES, keep_stories, last_run
from tarry.tools.story.events import Story, StoryEvent

from .conftest import Project


def tarry_story(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["story", *arguments], env={"COLUMNS": "80"})


@pytest.fixture
def played(project: Project, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the messages of a run that has ended: one committed, one dead-lettered by SQS, one discarded."""
    project.send(fail=1)
    project.send(fail=9)
    project.send("Entries.fifo", group="a", fail=1)
    project.send("Entries.fifo", group="b", discard=True)
    assert project.run("--skip-time").exit_code == 0
    monkeypatch.chdir(project.folder)
    record = last_run(Path("template.yaml"))
    assert record is not None
    return [story.id for story in sorted(record.stories, key=lambda story: story.events[0].at)]


def test_the_record_of_the_last_run_tells_the_story_of_each_message(played: list[str], tmp_path: Path) -> None:
    found = [json.loads(tarry_story(each, "--json").stdout) for each in played]
    states = {story["events"][-1]["state"]: [event["state"] for event in story["events"]] for story in found}
    assert set(states) == {"COMMITTED", "DEAD_LETTERED", "DISCARDED"}
    assert states["DEAD_LETTERED"] == ["READY", *["IN_FLIGHT", "WAITING_RETRY"] * 3, "DEAD_LETTERED"]
    [failed] = [story for story in found for event in story["events"] if event.get("event") == "waiting_retry"]
    shown = tarry_story(failed["id"][:12], "--svg", "story.svg")
    assert shown.exit_code == 0, shown.output
    assert "from the last run of tarry local --skip-time (virtual time), until 20" in " ".join(shown.stdout.split())
    assert re.search(r"WAITING_RETRY +for 1 s$", shown.stdout, re.MULTILINE)
    assert "ValueError: ordered says no" in shown.stdout
    assert "Committed after 2 attempts in" in shown.stdout
    assert failed["id"] in (tmp_path / "story.svg").read_text("utf-8")


def test_a_message_that_is_not_in_the_record_is_not_found(played: list[str], tmp_path: Path) -> None:
    result = tarry_story("nosuch")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "no tarry local answers at http://127.0.0.1:9; the record of its last run, until 20" in result.stderr
    assert "For a deployed stack: --stack NAME" in result.stderr
    [path] = directory(os.environ, Path.home()).glob("stories-*.jsonl")
    for damaged in (b"", b"\xff", b'{"ended_at": "now"}\n{"id": 1}\n'):
        path.write_bytes(damaged)
        result = tarry_story(played[0])
        assert (result.exit_code, "there is no record of an earlier run" in result.stderr) == (1, True)


def test_the_record_is_bounded_and_keeps_the_latest(tmp_path: Path) -> None:
    def stories(count: int, text: str = "") -> list[Story]:
        event = StoryEvent(0.0, State.COMMITTED, text=text)
        return [Story(f"{number:05}", (event,), "tarry local", 1.0) for number in range(count)]

    keep_stories(tmp_path, stories(MOST_STORIES + 7))
    record = last_run(tmp_path)
    assert record is not None
    assert [record.stories[0].id, record.stories[-1].id] == ["00007", f"{MOST_STORIES + 6:05}"]
    assert record.path.stat().st_mode & 0o077 == 0, "errors may tell what is in a message"
    keep_stories(tmp_path, stories(30, "x" * 1_000_000))
    large = last_run(tmp_path)
    assert large is not None
    assert 10 < len(large.stories) < 20
    keep_stories(tmp_path, [])
    assert last_run(tmp_path) == large, "a run without messages keeps the record"


@pytest.fixture(autouse=True)
def _own_directory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
