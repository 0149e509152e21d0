"""The audit of a command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from tarry.failed.journal import CannotWrite
from tarry.tools.cli.errors import note, refuse
from tarry.tools.common.audit import Audit

if TYPE_CHECKING:
    from pathlib import Path

    from tarry.tools.cli.failed.targets import AwsAccess


class CommandAudit(Audit):
    """The audit of one run of a command. If it cannot be written, the command ends with exit code 1.

    ``asked`` are the fields that say what the user asked for: queues, ids, conditions.
    """

    def __init__(self, path: Path | None, command: str, account: AwsAccess, asked: dict[str, Any]) -> None:
        self._is_refused = False
        try:
            super().__init__(path, command, account, asked)
        except CannotWrite as error:
            refuse(str(error), 1)
        if why := self.line.get("who_error"):
            note(f"The audit does not say who you are at AWS: sts:GetCallerIdentity failed ({why}).")

    def begin(self) -> None:
        """Write what was asked for; if that fails, nothing is changed."""
        try:
            super().begin()
        except CannotWrite as error:
            if self._is_refused:  # in another thread, which has said it
                raise typer.Exit(1) from error
            self._is_refused = True
            refuse(str(error), 1)

    def end(self, **more: Any) -> None:
        """Write what was done; if that fails, it is printed."""
        try:
            super().end(**more)
        except CannotWrite as error:
            refuse(f"{str(error).partition(';')[0]}; the line is: {json.dumps(self.line)}", 1)
