"""`tarry console`: the queues and their dead letters in a browser."""

import asyncio
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import libraries, note, refusals, refuse
from tarry.tools.cli.failed.targets import (
    AwsAccess,
    at_place,
    check_placed,
    confirms_place,
    find_targets,
    in_project,
    project_template,
)
from tarry.tools.cli.options import AUDIT, TEMPLATE_FILE, AwsOptions, TargetOptions, option
from tarry.tools.common.places import place_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarry.tools.console.access import Console
    from tarry.tools.console.server import Served
    from tarry.tools.template import Template

EXAMPLE = """\
tarry console --stack shop-prod
tarry console --stack shop-prod --write
tarry console --local --no-open"""

MAX_KEEPALIVE_SECONDS = 43_200


def console(  # noqa: PLR0913 the options of the command
    *,
    where_options: AwsOptions,
    stack: str | None = option("--stack NAME", "All queues of a deployed stack."),
    template: Path | None = TEMPLATE_FILE,
    queue: list[str] | None = option("--queue -q NAME|URL", "A queue or dead-letter queue; repeatable."),
    port: int = option("--port N", "The port; by default a free one.", 0, min=0, max=65535),
    no_open: bool = option("--no-open", "Open no browser: print the one-time address on stdout.", False),
    write: bool = option("--write", "Allow to retry, edit and remove messages, and to send some.", False),
    no_bodies: bool = option("--no-bodies", "Show no bodies and no message attributes.", False),
    keepalive: float = option(
        "--keepalive SECONDS",
        "The longest time for which dead letters stay invisible if the console is killed.",
        60.0,
        min=1,
        max=MAX_KEEPALIVE_SECONDS,
    ),
    audit: Path | None = AUDIT,
) -> None:
    """Look at queues and dead letters in a browser; with --write, also change them.

    Without --local, --aws, --stack or --endpoint-url: the `tarry local` that runs the
    template in this directory, or else AWS; with --write, the command asks. At AWS,
    without --stack, --template and --queue: the stack in samconfig.toml or .yaml, or
    else the queues of the template in this directory. Elsewhere: all queues.

    The page is served on this machine only. Its address works once; press Enter
    for another one. Ctrl-C stops the console.

    Exit code: 0 stopped, 1 the port is taken, 2 wrong usage, or AWS refuses.
    """
    with libraries("tarry console", "console"):
        import jinja2  # noqa: F401

        from tarry.tools.simulator.http.server import PortTaken
    given = [name for name, value in (("--stack", stack), ("--template", template), ("--queue", queue)) if value]
    if len(given) > 1:
        refuse(f"{' and '.join(given)} cannot be combined: give one of them")
    where = TargetOptions(None, template, stack, **vars(where_options))
    with refusals(aws=True):
        where = at_place(where, queue or [])
        if write:
            check_placed(where)
        found = _console(where, queue or [])
    place = place_text(found.client("sqs").meta.endpoint_url, found.place.account, found.place.region)
    note(place)
    question = f"Serve a console that can retry and remove dead letters at {place}?"
    if write and not confirms_place(where, question):
        raise typer.Exit(0)
    found.can_write, found.shows_bodies = write, not no_bodies
    found.keepalive = keepalive
    found.audit_path = audit or found.audit_path
    try:
        asyncio.run(_serve(found, port, opens=not no_open))
    except PortTaken as error:
        refuse(f"{error}; give another port (--port N), or none for a free one", 1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(0) from None


def _console(where: TargetOptions, names: list[str]) -> "Console":
    """Find the queues. Raises the errors of `refusals`."""
    from tarry.tools.console import finding
    from tarry.tools.console.access import Console

    named, where = where, where if names else in_project(where)
    if where.stack != named.stack:
        note(f"Using stack {where.stack}, as the samconfig file says.")
    account = AwsAccess(where)
    template: Template | None = None
    names_of_template: dict[str, str] = {}
    if names:
        found = finding.queues_by_name(names, account)
    elif where.stack is not None:
        found = finding.queues_of_stack(where.stack, account)
        template, names_of_template = _template_of_stack(where, account)
    elif where.template is None and not account.is_aws:
        found = finding.queues_of_endpoint(account)
    else:
        template = project_template(where, account)
        found = finding.queues_of_template(template, account)
    place = finding.place_of(account, found.account)
    return Console(account, place, found.queues, template=template, template_names=names_of_template, stack=where.stack)


def _template_of_stack(where: TargetOptions, account: AwsAccess) -> "tuple[Template | None, dict[str, str]]":
    """Return the template in this directory with the queue names of the stack; None if it cannot be used."""
    from tarry.tools.template.model import TemplateError

    try:
        targets = find_targets(where, account, needs_template=True)
    except (UsageError, TemplateError) as error:
        note(f"The policies and handlers of the stack are not known: {error}")
        return None, {}
    return targets.template, dict(targets.template_names)


async def _serve(found: "Console", port: int, *, opens: bool) -> None:
    """Serve the console until it is stopped."""
    from tarry.tools.console.server import serve

    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with serve(found, port) as served:
        access = "It can change messages (--write)." if found.can_write else "It is read-only; --write allows changes."
        count = len(found.queues)
        note(f"Console for {count} queue{'s'[: count != 1]} at {served.url}. {access}")
        note("Press Enter for a new one-time address, Ctrl-C to stop.")
        on_enter(lambda: _print_address(served), asyncio.get_running_loop())
        # In a thread: a browser in the terminal, such as w3m, waits for the answers of this loop until it is closed.
        if not (opens and await found.compute(_open, served.address())):
            _print_address(served)
        await asyncio.get_running_loop().create_future()


def _open(address: str) -> bool:
    """Open the address in the browser; return whether one was found."""
    import webbrowser

    try:
        return webbrowser.open(address)
    except (OSError, webbrowser.Error):
        return False


def _print_address(served: "Served") -> None:
    typer.echo(served.address())
    sys.stdout.flush()


def on_enter(action: "Callable[[], None]", loop: asyncio.AbstractEventLoop) -> None:
    """Call ``action`` on the loop for each line of stdin."""
    if not _may_read():
        return

    def read() -> None:
        with suppress(OSError, ValueError, RuntimeError):
            for _ in sys.stdin:
                loop.call_soon_threadsafe(action)

    threading.Thread(target=read, daemon=True).start()


def _may_read() -> bool:
    """Whether reading stdin does not stop the process: a background job of a shell must not read its terminal."""
    try:
        if not sys.stdin.isatty():
            return True
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):  # Windows, or no stdin
        return sys.stdin is not None
