"""`tarry failed restore`."""

from pathlib import Path
from typing import Annotated

import typer

from tarry import failed
from tarry.failed.usage import UsageError
from tarry.failed.wording import count_of
from tarry.tools.cli.errors import note, refusals
from tarry.tools.cli.failed.prompts import confirms, has_terminal
from tarry.tools.cli.failed.session import CommandSession, session
from tarry.tools.cli.options import AsJson, Audit, AwsOptions, Force, LocalPort, TargetOptions

RESTORE_EXAMPLE = """\
tarry failed restore removed.jsonl --queue orders-dlq"""


def restore(  # noqa: PLR0917 the options of the command
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The archive that tarry failed remove has written.")],
    queue: Annotated[
        str,
        typer.Option(
            "--queue", "-q", metavar="NAME|URL", help="The queue to send to, usually the one they were removed from."
        ),
    ],
    place: AwsOptions,
    as_json: AsJson = False,
    force: Force = False,
    port: LocalPort = None,
    audit: Audit = None,
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
        for result in results:
            report.add(result)
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
