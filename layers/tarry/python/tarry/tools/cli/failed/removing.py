"""The checks of `tarry failed remove` before it deletes: the archive, and the names of queues that are emptied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.prompts import ask_for_text, has_terminal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tarry.tools.cli.failed.session import CommandSession


def check_options(archive: Path | None, yes_delete: Sequence[str], *, no_archive: bool, everything: bool) -> None:
    """Check that the options of `remove` go together. Raises `UsageError`."""
    if archive is not None and no_archive:
        raise UsageError("--archive and --no-archive cannot be combined: give one of them")
    if yes_delete and not everything:
        raise UsageError("--yes-delete confirms --all: add --all, or leave out --yes-delete")


def check_can_ask(yes_delete: Sequence[str], *, force: bool) -> None:
    """Check that `remove` can ask, or need not. Raises `UsageError`."""
    if not (force or yes_delete or has_terminal()):
        raise UsageError(
            "remove asks before it deletes, and there is no terminal: add --force, or with --all at AWS --yes-delete "
            "NAME; nothing was changed"
        )


def confirms_emptying(run: CommandSession, yes_delete: Sequence[str]) -> bool:
    """Whether each queue that `remove --all` empties was named: by ``--yes-delete``, or typed at the terminal.

    Raises:
        UsageError: a queue is named that is not selected, or one is not named and there is no terminal.
    """
    names = [queue.name for queue in run.queues]
    for each in yes_delete:
        if each not in names:
            raise UsageError(f"--yes-delete names {each!r}, but the selected queues are {run.queue_names}")
    for queue in run.queues:
        if queue.name in yes_delete:
            continue
        if not has_terminal():
            others = "".join(f" --yes-delete {name}" for name in names if name not in yes_delete)
            raise UsageError(f"remove --all at AWS must name the queue that it empties: add{others}")
        question = f"This deletes all dead letters in {queue.name} (about {queue.about:,}). Type the queue's name: "
        typed = ask_for_text(run.guidance, run.stopping, question)
        if typed != queue.name:
            note(f"{typed!r} is not {queue.name}: no dead letter was removed")
            return False
    return True


def is_asked_in_full(run: CommandSession, yes_delete: Sequence[str], *, everything: bool) -> bool:
    """Whether the names of the queues are asked for, instead of one key."""
    return everything and (run.account.is_aws or bool(yes_delete))
