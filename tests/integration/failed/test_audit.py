"""The audit of `tarry failed`: one line about each run that changes something."""

import json
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.cli.failed.targets import AwsAccess
from tests.integration.failed.test_command import MotoShop, shop

__all__ = ["shop"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_each_run_that_changes_something_appends_one_line(shop: MotoShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(shop.folder))
    audit = shop.folder / "tarry/audit.jsonl"
    shop.put(4)
    shop.run("show")
    shop.run("remove", "--where", "attempts = 77")
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


def test_the_audit_says_which_were_selected_and_how_they_were_retried(shop: MotoShop) -> None:
    shop.put(4, failed_at="2026-11-21T08:31:40Z")
    audit = shop.folder / "audit.jsonl"
    group, times = ("--group", "9f2c61d0a4be"), ("--since", "2026-11-21T08:00Z", "--until", "2026-11-21T09:00Z")
    shop.run("retry", *group, "--dry-run", "--audit", str(shop.folder / "nowhere/audit.jsonl"))
    assert not (shop.folder / "nowhere").exists()
    shop.run("retry", *group, *times, "--rate", "90/m", "--max-return", "5%", "--audit", str(audit))
    shop.put(1, first=9)
    shop.run("remove", *group, "--since", "2026-11-01", "--audit", str(audit))
    retried, removed = lines(audit)
    asked = {"group": "9f2c61d0a4be", "since": "2026-11-21T08:00:00.000Z", "until": "2026-11-21T09:00:00.000Z"}
    assert {**retried, **asked, "via": "queue", "rate": 1.5, "max_return": 0.05} == retried
    assert {"canary", "within", "all", "where", "came_back"} & set(retried) == set()
    assert (removed["group"], removed["ids"]) == ("9f2c61d0a4be", ["id-9"])
    assert removed["since"] == "2026-11-01T00:00:00.000Z"


def test_an_edited_dead_letter_is_counted_as_edited(shop: MotoShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "sed -i s/0/99/")
    shop.put(1)
    assert shop.run("retry", "id-0", "--edit", "--force", "--audit", "audit.jsonl").exit_code == 0
    [line] = lines(shop.folder / "audit.jsonl")
    assert (line["outcomes"], line["ids"]) == ({"retried": 1, "edited": 1}, ["id-0"])


def test_an_audit_file_that_cannot_be_written_changes_nothing(shop: MotoShop) -> None:
    shop.put(1)
    (shop.folder / "file").touch()
    for command in ("retry", "remove"):
        result = shop.run(command, "--where", "attempts = 1", "--audit", "file/audit.jsonl")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            f"tarry: the audit file file/audit.jsonl cannot be written: {result.stderr.split(': ')[2].split(';')[0]}; "
            "nothing was changed; name another file (--audit FILE)\n"
        )
    assert shop.depths() == (0, 1, 0)


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
