"""The audit of a command: one JSON line about each run that changes something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from tarry.cli.errors import note
from tarry.tooling.audit import Audit
from tarry.tooling.journal import CannotWrite

if TYPE_CHECKING:
    from pathlib import Path

    from tarry.cli.failed.targets import AwsAccess


class CommandAudit(Audit):
    """The audit line of one run of a command: opened before anything changes, written at the end if something did.

    ``asked`` are the fields that say what the user asked for: queues, ids, conditions.

    Raises:
        CannotWrite: the audit file cannot be opened. Nothing was changed.
    """

    def __init__(self, path: Path | None, command: str, account: AwsAccess, asked: dict[str, Any]) -> None:
        super().__init__(path, command, account, asked)
        if error := self.line.get("who_error"):
            note(f"The audit does not say who you are at AWS: sts:GetCallerIdentity failed ({error}).")

    def end(self, **more: Any) -> None:
        """Write the line if something was changed, or may have been; a failure to write it ends the command with 1."""
        try:
            super().end(**more)
        except CannotWrite as error:
            note(f"tarry: {str(error).partition(';')[0]}; the line is: {json.dumps(self.line)}")
            raise typer.Exit(1) from error
