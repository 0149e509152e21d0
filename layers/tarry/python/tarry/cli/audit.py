"""The audit of a command: one JSON line about each run that changes something."""

from __future__ import annotations

import getpass
import json
import time
from collections import Counter
from contextlib import suppress
from platform import node
from typing import TYPE_CHECKING, Any

import typer

from tarry.cli.errors import note
from tarry.envelope.attribute import timestamp
from tarry.tooling.journal import CannotWrite, Journal, state_folder

if TYPE_CHECKING:
    from pathlib import Path

    from tarry.cli.failed.targets import AwsAccess
    from tarry.failed import Result

MAX_IDS = 1000
"""The most ids in a line; the number of the others is in it too."""
REMEDY = "nothing was changed; name another file (--audit FILE)"


class CommandAudit:
    """The audit line of one run: opened before anything changes, written at the end if something did.

    ``asked`` are the fields that say what the user asked for: queues, ids, conditions.

    Raises:
        CannotWrite: the audit file cannot be opened. Nothing was changed.
    """

    def __init__(self, path: Path | None, command: str, account: AwsAccess, asked: dict[str, Any]) -> None:
        self._journal = Journal(path or state_folder() / "audit.jsonl", "audit file", REMEDY, is_ours=False)
        self._outcomes: Counter[str] = Counter()
        self._ids: list[str] = []
        self._changes: list[dict[str, Any]] = []
        user = "unknown"
        with suppress(OSError, KeyError, ImportError):  # the user id has no name
            user = getpass.getuser()
        self._line = {
            "v": 1,
            "at": timestamp(time.time()),
            "command": f"tarry {command}",
            **_identity(account),
            "user": f"{user}@{node()}",
            "region": account.region,
            "endpoint": account.endpoint,
            **{name: value for name, value in asked.items() if value},
        }

    def add(self, result: Result) -> None:
        """Count a result of `tarry failed`."""
        self._outcomes[result.outcome] += 1
        if result.outcome != "skipped":
            self._ids.append(result.id) if len(self._ids) < MAX_IDS else None
        dead_letter = result.dead_letter
        if result.outcome == "retried" and dead_letter is not None and dead_letter.body != dead_letter.record["body"]:
            self._outcomes["edited"] += 1

    def add_change(self, change: dict[str, Any]) -> None:
        """Add a change of something else than a message."""
        self._changes.append(change)

    def end(self, **more: Any) -> None:
        """Write the line if something was changed, or may have been; a failure to write it ends the command with 1."""
        try:
            if not self._changes and not self._outcomes.keys() - {"skipped"}:
                return
            line = self._line | {name: value for name, value in more.items() if value}
            line["ended_at"] = timestamp(time.time())
            if self._outcomes:
                acted_on = self._outcomes.total() - self._outcomes["skipped"] - self._outcomes["edited"]
                line |= {"outcomes": dict(self._outcomes), "ids": self._ids}
                line |= {"more_ids": acted_on - len(self._ids)} if acted_on > len(self._ids) else {}
            if self._changes:
                line["changes"] = self._changes
            try:
                self._journal.append([line])
            except CannotWrite as error:
                note(f"tarry: {str(error).partition(';')[0]}; the line is: {json.dumps(line)}")
                raise typer.Exit(1) from error
        finally:
            self._journal.close()


def _identity(account: AwsAccess) -> dict[str, Any]:
    """Return who acts, as STS says; an error of STS is noted and prevents nothing."""
    if not account.is_aws:
        return {}
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        arn = account.identity()
    except (BotoCoreError, ClientError) as error:
        note(f"The audit does not say who you are at AWS: sts:GetCallerIdentity failed ({error}).")
        return {"who": None, "who_error": str(error)}
    return {"who": arn, "account": arn.split(":")[4]}
