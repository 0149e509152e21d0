"""`tarry failed remove` and `tarry failed restore`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tarry import failed
from tarry.failed.selection import selection_fields
from tarry.failed.text import count_of
from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import note, refusals
from tarry.tools.cli.failed.prompts import ask_for_text, confirms, has_terminal
from tarry.tools.cli.failed.rendering import line
from tarry.tools.cli.failed.retrying import remove_found
from tarry.tools.cli.failed.session import CommandSession, session
from tarry.tools.cli.options import (
    ALL,
    AS_JSON,
    AUDIT,
    FORCE,
    PORT,
    REQUIRED,
    ArchiveOptions,
    AwsOptions,
    ChangeOptions,
    Selected,
    TargetOptions,
    argument,
    option,
)


def check_options(archives: ArchiveOptions, *, everything: bool) -> None:
    """Check that the options of `remove` go together. Raises `UsageError`."""
    if archives.archive is not None and archives.no_archive:
        raise UsageError("--archive and --no-archive cannot be combined: give one of them")
    if archives.yes_delete and not everything:
        raise UsageError("--yes-delete confirms --all: add --all, or leave out --yes-delete")


def _check_can_ask(*, force: bool) -> None:
    if not (force or has_terminal()):
        raise UsageError(
            "remove asks before it deletes, and there is no terminal: add --force, or with --all at AWS --yes-delete "
            "NAME; nothing was changed"
        )


def confirms_emptying(run: CommandSession, yes_delete: Sequence[str]) -> bool:
    """Whether each queue that `remove --all` empties was named: by ``--yes-delete``, or typed at the terminal.

    Raises `UsageError` for a queue that is not selected, and for one that is not named if there is no terminal.
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


EXAMPLE = """\
tarry failed remove 636e0ad2 --queue orders-dlq
tarry failed remove --queue orders-dlq --group 51aa03b8c7d2"""


def remove(
    *,
    options: TargetOptions,
    chosen: Selected,
    everything: bool = ALL,
    change: ChangeOptions,
    archives: ArchiveOptions,
    audit: Path | None = AUDIT,
) -> None:
    """Delete dead letters, after writing them to an archive.

    tarry failed restore sends the dead letters of an archive back to a queue. If
    the archive cannot be written, no dead letter is deleted.

    The command asks once for all; without a terminal it needs --force. At AWS,
    --all asks for the name of the queue, also with --force.

    Exit code: 0 success, 1 some dead letters could not be deleted, 2 wrong usage
    (nothing was changed), 128 plus its number after a signal.
    """
    yes_delete, force = archives.yes_delete or [], change.force
    with refusals(aws=True):
        selection = chosen.selection(everything=everything)
        if selection.is_empty:
            raise UsageError("no dead letters selected: give ids, --where, --group or --all")
        check_options(archives, everything=everything)
    with session(options, keepalive=change.keepalive, action="Permanently delete", force=force) as run:
        _check_can_ask(force=force or bool(yes_delete))
        run.begin_audit(audit, "failed remove", **selection_fields(selection))
        report = run.report("deleted", "failed", as_json=change.as_json, shows_all=bool(selection.ids))
        asks = is_shown = has_terminal() and not force
        if everything and (run.account.is_aws or yes_delete):  # asked for by name, instead of by one key
            if not confirms_emptying(run, yes_delete):
                run.exit(0)
            asks = False
        kept = None if archives.no_archive else run.archived(archives.archive)
        if selection.ids:
            with run.found_once(selection.ids, report) as found:
                for dead_letter, _ in found:
                    note(line(dead_letter))
                question = f"Permanently delete {count_of(len(found))}?"
                if found and asks and not confirms(run.guidance, run.stopping, question):
                    run.exit(0)
                report.add_all(remove_found(run, found, change.concurrency, kept))
            run.end(report)
        if asks and not run.confirms_selection(selection, "Permanently delete"):
            run.exit(0)
        for each in run.queues:
            with run.opened(each) as inspection, report.progress():
                previewed = selection.as_previewed(each, is_shown=is_shown)
                results = failed.remove(inspection, previewed, concurrency=change.concurrency, archive=kept)
                report.add_all(results, inspection)
            if run.stopping():
                break
        run.end(report, run.report_no_match(selection, report.handled))


RESTORE_EXAMPLE = """\
tarry failed restore removed.jsonl --queue orders-dlq"""


def restore(
    *,
    file: Path = argument("FILE", "The archive that tarry failed remove has written.", REQUIRED),
    queue: str = option(
        "--queue -q NAME|URL", "The queue to send to, usually the one they were removed from.", REQUIRED
    ),
    place: AwsOptions,
    as_json: bool = AS_JSON,
    force: bool = FORCE,
    port: int | None = PORT,
    audit: Path | None = AUDIT,
) -> None:
    """Send the dead letters of an archive back to a queue.

    Body and attributes are as they were, the Tarry attribute included. FILE.restored
    records each message that was sent, and a second run skips it. If a dead letter
    may be in the queue already, since its removal or an earlier restore was not
    confirmed, the command asks; without a terminal it is left out, unless --force.

    Exit code: 0 success, 1 some dead letters could not be restored, 2 wrong usage
    (nothing was changed), 128 plus its number after a signal.
    """
    with refusals(aws=True):
        try:
            with file.open("rb"):
                pass
        except OSError as error:
            raise UsageError(f"the archive {file} cannot be read: {error.strerror}") from error
    with session(TargetOptions(queue, port=port, **vars(place)), action="Restore", force=force) as run:
        run.begin_audit(audit, "failed restore", archive=str(file.resolve()))
        report = run.report("restored", "failed", "skipped", as_json=as_json, shows_all=False)
        results = failed.restore(
            file,
            run.queues[0],
            stop=run.should_stop,
            before_change=run.begin_change,
            twice=lambda count: force or _restores_twice(run, count),
        )
        report.add_all(results)
        if run.stopping():
            note(f"{run.stopping.name}: stopped; run the command again to restore the others")
        run.end(report)


def _restores_twice(run: CommandSession, count: int) -> bool:
    """Ask whether to send dead letters that may be in the queue already; without a terminal, say how to send them."""
    name = run.queue_names
    why = "their removal was interrupted, or SQS did not confirm it or an earlier restore"
    note(f"{count_of(count)} of the archive may be in {name} already: {why}. Restored, they may be there twice.")
    if not has_terminal():
        note(f"They are not restored. Look at {name}; to restore them all the same: --force")
        return False
    return confirms(run.guidance, run.stopping, f"Restore {count_of(count)} that may be in {name} already?")
