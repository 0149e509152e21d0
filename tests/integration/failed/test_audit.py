"""The audit of `tarry failed`: one line about each run that changes something."""

import errno
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.tools.cli.failed.targets import AwsAccess
from tests.integration.failed.motoshop import MotoShop


def all_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the last lines of runs."""
    return [line for line in all_lines(path) if "ended_at" in line]


@pytest.mark.parametrize("command", ["retry", "remove"])
def test_what_is_asked_for_is_written_before_the_first_change_and_what_was_done_after_it(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:  # SPEC M6
    shop.put(2)
    path, seen, real = shop.folder / "audit.jsonl", list[list[dict[str, Any]]](), AwsAccess.client

    def client(self: AwsAccess, service: str, **more: Any) -> Any:
        made = real(self, service, **more)
        operation = "SendMessageBatch" if command == "retry" else "DeleteMessageBatch"
        made.meta.events.register(f"before-send.sqs.{operation}", lambda **_: seen.append(all_lines(path)))
        return made

    monkeypatch.setattr(AwsAccess, "client", client)
    shop.run(command, "--where", "attempts > 0", "--audit", "audit.jsonl", "--force")
    [begun] = seen[-1]
    first, last = all_lines(path)
    assert first == begun
    assert first.keys() & {"ended_at", "outcomes", "ids"} == set()
    assert (first["run"], first["where"], first["account"]) == (last["run"], ["attempts > 0"], "123456789012")
    assert ("archive" in first, last["outcomes"]) == (
        command == "remove",
        {"deleted" if first.get("archive") else "retried": 2},
    )


def disk_full(after: int) -> Callable[[int], None]:
    """Return a stand-in for `os.fsync` that fails after some calls."""
    calls = count()

    def fsync(_: int) -> None:
        if next(calls) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")

    return fsync


@pytest.mark.parametrize(("command", "new_files"), [("retry", 1), ("remove", 2)])
def test_if_the_audit_cannot_be_begun_nothing_is_done(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch, command: str, new_files: int
) -> None:  # SPEC M6
    shop.put(2)
    selected = (command, "--where", "attempts > 0", "--force", "--audit")
    (shop.folder / "file").touch()
    place, _, error = shop.refused(*selected, "file/audit.jsonl", code=1).partition("\n")
    assert place == "AWS 123456789012 us-east-1"
    assert error.startswith("tarry: the audit file file/audit.jsonl cannot be written: ")
    assert error.endswith("; nothing was changed; name another file (--audit FILE)\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(shop.folder))
    monkeypatch.setattr("tarry.failed.journal.os.fsync", disk_full(new_files))
    result = shop.run(*selected, "audit.jsonl")
    assert (result.exit_code, shop.depths()) == (1, (0, 2, 0))
    assert "the audit file audit.jsonl cannot be written: No space left on device; nothing was changed" in result.stderr


def test_if_the_audit_cannot_be_completed_the_outcome_is_printed(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M6
    shop.put(2)
    monkeypatch.setattr("tarry.failed.journal.os.fsync", disk_full(2))
    result = shop.run("retry", "--all", "--audit", "audit.jsonl")
    assert (result.exit_code, shop.depths()) == (1, (2, 0, 0))
    assert json.loads(result.stderr.rpartition("the line is: ")[2])["outcomes"] == {"retried": 2}
    [begun] = all_lines(shop.folder / "audit.jsonl")
    assert "outcomes" not in begun


def test_each_run_that_changes_something_appends_one_line(shop: MotoShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(shop.folder))
    audit = shop.folder / "tarry/audit.jsonl"
    shop.put(4)
    shop.run("show")
    shop.run("remove", "--where", "attempts = 77", "--force")
    assert lines(audit) == []
    shop.run("retry", "id-0", "none", "--force")
    shop.run("remove", "--where", "attempts = 2", "--force")
    [archive] = (shop.folder / "tarry/removed").iterdir()
    shop.run("restore", str(archive))
    retried, removed, restored = lines(audit)
    assert audit.stat().st_mode & 0o777 == 0o600
    assert {name: retried[name] for name in ("v", "command", "who", "account", "region", "queues", "endpoint")} == {
        "v": 1,
        "command": "tarry failed retry",
        "who": "arn:aws:sts::123456789012:user/moto",
        "account": "123456789012",
        "region": "us-east-1",
        "queues": ["arn:aws:sqs:us-east-1:123456789012:orders-dlq"],
        "endpoint": None,
    }
    assert (retried["asked_ids"], retried["via"]) == (["id-0", "none"], "queue")
    assert (retried["outcomes"], retried["ids"]) == ({"failed": 1, "retried": 1}, ["none", "id-0"])
    assert (removed["where"], removed["outcomes"], removed["ids"]) == (["attempts = 2"], {"deleted": 1}, ["id-1"])
    assert removed["archive"] == restored["archive"] == str(archive)
    assert restored["outcomes"] == {"restored": 1}


def test_the_audit_says_which_were_selected_edited_and_how_they_were_retried(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.put(4, failed_at="2026-11-21T08:31:40Z")
    audit = shop.folder / "audit.jsonl"
    group, times = ("--group", "9f2c61d0a4be"), ("--since", "2026-11-21T08:00Z", "--until", "2026-11-21T09:00Z")
    shop.run("retry", *group, "--dry-run", "--audit", str(shop.folder / "nowhere/audit.jsonl"))
    assert not (shop.folder / "nowhere").exists()
    shop.run("retry", *group, *times, "--rate", "5400/m", "--max-return", "5%", "--audit", str(audit))
    shop.put(1, first=9)
    shop.run("remove", "--force", *group, "--since", "2026-11-01", "--audit", str(audit))
    shop.put(1)
    monkeypatch.setenv("VISUAL", "sed -i s/0/99/")
    shop.run("retry", "id-0", "--edit", "--force", "--audit", str(audit))
    retried, removed, edited = lines(audit)
    asked = {"group": "9f2c61d0a4be", "since": "2026-11-21T08:00:00.000Z", "until": "2026-11-21T09:00:00.000Z"}
    assert {**retried, **asked, "via": "queue", "rate": 90, "max_return": 0.05} == retried
    assert {"canary", "within", "all", "where", "came_back"} & set(retried) == set()
    assert (removed["group"], removed["ids"]) == ("9f2c61d0a4be", ["id-9"])
    assert removed["since"] == "2026-11-01T00:00:00.000Z"
    assert (edited["outcomes"], edited["ids"]) == ({"retried": 1, "edited": 1}, ["id-0"])


def test_an_identity_that_sts_does_not_tell_is_noted_and_prevents_nothing(
    shop: MotoShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: AwsAccess) -> str:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetCallerIdentity")

    monkeypatch.setattr(AwsAccess, "identity", denied)
    shop.put(1)
    result = shop.run("retry", "--all", "--audit", "audit.jsonl")
    assert (result.exit_code, shop.depths()) == (0, (1, 0, 0))
    assert "The audit does not say who you are at AWS: sts:GetCallerIdentity failed" in result.stderr
    [line] = lines(shop.folder / "audit.jsonl")
    assert (line["who"], "AccessDenied" in line["who_error"], "@" in line["user"]) == (None, True, True)
