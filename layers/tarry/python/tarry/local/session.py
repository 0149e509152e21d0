"""`tarry local` in real time: a cloud from its start to its end, shown, and ended by Ctrl-C or SIGTERM."""

import asyncio
import signal
from contextlib import suppress
from dataclasses import replace

from tarry.local.aws.endpoint import DEFAULT_PORT
from tarry.local.cloud import Cloud, running
from tarry.local.plan import Note, Plan, Settings
from tarry.local.runs.play import play
from tarry.local.runs.report import Report
from tarry.local.show.board import Board
from tarry.local.show.outlook import Outlook
from tarry.local.show.screen import View


def run(plan: Plan, settings: Settings, view: View, note: Note) -> Report | None:
    """Run the plan: with an event until that is over, which is reported; else until the cloud is told to end.

    Raises:
        UsageError: see `tarry.local.cloud.running`.
        KeyboardInterrupt: it was told to end before it had begun.
    """
    try:
        return asyncio.run(_session(plan, settings, view, note))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _session(plan: Plan, settings: Settings, view: View, note: Note) -> Report | None:
    _end_by_sigterm()
    if settings.port is None and settings.event is None:
        settings = replace(settings, port=DEFAULT_PORT)
    board = Board({mapping.queue for mapping in plan.template.mappings}, view.step, forgetful=settings.event is None)
    outlook = Outlook(board, view, verbose=settings.verbose)
    async with running(plan, settings, outlook.hear, note) as cloud, view.showing(outlook.scene(cloud)):
        try:
            if settings.event is not None:
                return await play(cloud, outlook, settings, note)
            await _serve(cloud)
        finally:
            outlook.is_over = True
    return None


async def _serve(cloud: Cloud) -> None:
    """Until it is told to end."""
    queues = ", ".join(dict.fromkeys(mapping.queue for mapping in cloud.plan.all_mappings))
    cloud.history.record("noted", text=f"SQS is at {cloud.url}, and waits for messages to {queues}", style="bold")
    cloud.start()
    with suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()


def _end_by_sigterm() -> None:
    """SIGTERM ends it as Ctrl-C does, which asyncio sees to."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
