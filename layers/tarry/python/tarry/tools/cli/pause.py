"""`tarry pause` and `tarry resume`: disable and enable the event source mappings of functions and queues."""

import sys
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from tarry.failed.usage import UsageError
from tarry.tools.cli.audit import CommandAudit
from tarry.tools.cli.errors import note, refusals
from tarry.tools.cli.failed.places import at_place, check_placed, confirms_place
from tarry.tools.cli.failed.prompts import StoppedBySignal, Stopping
from tarry.tools.cli.failed.reporting import write_json
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.tools.cli.mappings import Change, Mapping, change, find
from tarry.tools.cli.options import AsJson, Audit, AwsOptions, TargetOptions
from tarry.world import use

PAUSE_EXAMPLE = """\
tarry pause --queue orders --aws
tarry pause OrdersFunction --stack shop
tarry pause --stack shop"""
RESUME_EXAMPLE = """\
tarry resume --queue orders --aws
tarry resume --stack shop"""
LINE_EVERY_SECONDS = 10.0

Function = Annotated[
    str | None,
    typer.Argument(
        metavar="FUNCTION",
        help="The name or ARN of the function; with --stack, also its logical id.",
        show_default=False,
    ),
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue", "-q", metavar="NAME|URL", help="The functions of this queue; with --stack, also its logical id."
    ),
]
StackOfMappings = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME", help="A deployed stack; alone, all its functions that consume queues."),
]


@dataclass(frozen=True)
class PausedOptions:
    """The event source mappings to change, and how to tell of it."""

    function: Function = None
    queue: Queue = None
    stack: StackOfMappings = None
    as_json: AsJson = False
    audit: Audit = None


def pause(chosen: PausedOptions, place: AwsOptions) -> None:
    """Stop Lambda from giving the messages of a queue to its function.

    It disables the event source mappings, and waits until they are disabled.
    Batches that the function already has run to their end. The other messages wait
    in their queue, and expire when its retention period ends.

    Exit code: 0 all are disabled, 1 some are not, 2 wrong usage (nothing was
    changed), 128 plus its number after a signal.
    """
    _run("pause", chosen, place)


def resume(chosen: PausedOptions, place: AwsOptions) -> None:
    """Let Lambda give the messages of a queue to its function again.

    It enables the event source mappings, and waits until they are enabled.

    Exit code: 0 all are enabled, 1 some are not, 2 wrong usage (nothing was
    changed), 128 plus its number after a signal.
    """
    _run("resume", chosen, place)


def _run(command: str, chosen: PausedOptions, place_options: AwsOptions) -> None:
    function, where = chosen.function, TargetOptions(chosen.queue, None, chosen.stack, **vars(place_options))
    stopping, changes = Stopping(), list[Change]()
    with refusals(lambda: bool(changes), aws=True):
        if bool(function) + bool(where.queue) + (bool(where.stack) and not function and not where.queue) != 1:
            raise UsageError(f"name what to {command}: a function, a queue (--queue NAME), or a stack (--stack NAME)")
        where = at_place(where)
        check_placed(where)
        account = AwsAccess(where)
        with use(account.world()), stopping.listening():
            try:
                with stopping.at_prompt():  # nothing was changed yet
                    mappings = find(account, function, where.queue, where.stack)
                    place = account.place(mappings[0].account, mappings[0].region)
                    note(place)
                    question = f"{command.capitalize()} {', '.join(map(str, mappings))} at {place}?"
                    if not confirms_place(where, question, stopping):
                        raise typer.Exit(0)
                    asked = {"function": function, "queue": where.queue, "stack": where.stack}
                    written = CommandAudit(chosen.audit, command, account, asked)
            except StoppedBySignal:
                raise typer.Exit(stopping.exit_code) from None
            try:
                written.begin()
                progress = WaitProgress()
                changes += change(account, mappings, enabled=command == "resume", progress=progress, stop=stopping)
                progress.clear()
                for each in changes:
                    written.add_change(_fields(each))
                    _write(each, as_json=chosen.as_json)
            finally:
                written.end(signal=stopping.name or None)
        if command == "pause" and any(each.error is None for each in changes):
            note(f"Messages wait in their queue until its retention period ends. To resume: {_resume(function, where)}")
        failures = any(each.error is not None for each in changes)
        raise typer.Exit(stopping.exit_code if stopping() else int(failures))


def _fields(change: Change) -> dict[str, str]:
    mapping = change.mapping
    fields = {"queue": mapping.queue, "function": mapping.function, "uuid": mapping.uuid}
    fields |= {"before": change.before, "after": change.after}
    return fields if change.error is None else {**fields, "error": change.error}


def _write(change: Change, *, as_json: bool) -> None:
    if as_json:
        write_json(_fields(change))
        return
    states = change.after if change.before == change.after else f"{change.before} -> {change.after}"
    unchanged = " (unchanged)" if change.before == change.after and change.error is None else ""
    typer.echo(f"{change.mapping}: {states}{unchanged}" + (f"; failed: {change.error}" if change.error else ""))


def _resume(function: str | None, where: TargetOptions) -> str:
    """Return the command that takes back a pause."""
    named = {"--queue": where.queue, "--stack": where.stack, "--endpoint-url": where.endpoint_url}
    named |= {"--region": where.region, "--profile": where.profile}
    options = [f"{name} {value}" for name, value in named.items() if value]
    options += ["--aws"] if where.aws and not where.stack else []
    return " ".join(["tarry resume", *([function] if function else []), *options])


class WaitProgress:
    """The progress of a wait: one line at a terminal, otherwise a line every ten seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._written_at = time.monotonic()

    def __call__(self, mapping: Mapping, seconds: float) -> None:
        text = f"{mapping}: waiting for Lambda ({seconds:.0f} s)"
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif time.monotonic() - self._written_at >= LINE_EVERY_SECONDS:
            self._written_at = time.monotonic()
            note(text)

    def clear(self) -> None:
        if self._is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
