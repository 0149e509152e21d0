"""The audit: JSON lines about each run of a tool that changed something in a queue or a mapping.

A run writes a line before its first change, with what was asked for, and one at its end, with what was done; both have
the same ``run``. If the second one is missing, the process was killed, or still runs.
"""

from __future__ import annotations

import getpass
import threading
import time
from collections import Counter
from contextlib import suppress
from platform import node
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from tarry.failed.journal import Journal, state_folder
from tarry.record.attribute import timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tarry.failed import Result

MAX_IDS = 1000
"""The most ids in a line; the number of the others is in it too."""
REMEDY = "nothing was changed; name another file (--audit FILE)"


class Account(Protocol):
    """The clients for AWS, or for an endpoint in its place."""

    @property
    def is_aws(self) -> bool: ...

    @property
    def region(self) -> str | None: ...

    @property
    def endpoint(self) -> str | None:
        """The endpoint URL that takes the place of AWS; None for AWS."""

    def client(self, service: str) -> Any: ...

    def identity(self) -> str:
        """Return the ARN of the credentials, in one request. Raises the errors of boto3."""

    def renew(self) -> None:
        """Read the credentials again for later clients."""


def audit_file(path: Path | None = None, state: Path | None = None) -> Path:
    """Return the file of the audit: the named one, or ``audit.jsonl`` in a state directory, by default tarry's."""
    return path or (state or state_folder()) / "audit.jsonl"


class Audit:
    """The audit of one run: opened at its start, begun before anything changes, completed at the end.

    ``path`` is the file, None for that of tarry's state directory; ``command`` what runs, such as ``failed retry``; and
    ``asked`` what the user asked for: queues, ids, conditions. Raises `CannotWrite` if the file cannot be opened:
    nothing was changed.
    """

    def __init__(self, path: Path | None, command: str, account: Account, asked: Mapping[str, Any]) -> None:
        self._journal = Journal(audit_file(path), "audit file", REMEDY, is_ours=False)
        self._outcomes: Counter[str] = Counter()
        self._ids: list[str] = []
        self._changes: list[dict[str, Any]] = []
        self.came_back = ""
        """How many messages came back, if the run ended for it."""
        self._has_begun = False
        self._beginning = threading.Lock()
        self.line: dict[str, Any] = {
            "v": 1,
            "run": uuid4().hex[:12],
            "at": timestamp(time.time()),
            "command": f"tarry {command}",
            **_identity(account),
            "user": f"{_user()}@{node()}",
            "region": account.region,
            "endpoint": account.endpoint,
            **{name: value for name, value in asked.items() if value},
        }

    def begin(self) -> None:
        """Write what was asked for, before the first change. Can be called again, and from any thread.

        Raises `CannotWrite`.
        """
        with self._beginning:
            if not self._has_begun:
                self._journal.append([self.line])
                self._has_begun = True

    def add(self, result: Result) -> None:
        """Count a result of `tarry.failed`."""
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
        """Write what was done if something was changed, or may have been, and close the file. Raises `CannotWrite`."""
        try:
            if not (self._has_begun or self._changes or self._outcomes.keys() - {"skipped"}):
                return
            more = {"came_back": self.came_back, **more}
            self.line |= {name: value for name, value in more.items() if value}
            self.line["ended_at"] = timestamp(time.time())
            if self._outcomes:
                acted_on = self._outcomes.total() - self._outcomes["skipped"] - self._outcomes["edited"]
                self.line |= {"outcomes": dict(self._outcomes), "ids": self._ids}
                self.line |= {"more_ids": acted_on - len(self._ids)} if acted_on > len(self._ids) else {}
            if self._changes:
                self.line["changes"] = self._changes
            self._journal.append([self.line])
        finally:
            self._journal.close()


def _user() -> str:
    with suppress(OSError, KeyError, ImportError):  # the user id has no name
        return getpass.getuser()
    return "unknown"


def _identity(account: Account) -> dict[str, Any]:
    """Return who acts, as STS says; an error of STS is noted in the line and prevents nothing."""
    if not account.is_aws:
        return {}
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        arn = account.identity()
    except (BotoCoreError, ClientError) as error:
        return {"who": None, "who_error": str(error)}
    return {"who": arn, "account": arn.split(":")[4]}
