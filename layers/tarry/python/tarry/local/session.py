"""`tarry local` in real time: run a local cloud until Ctrl-C, SIGTERM, or until all messages of an event settled."""

import asyncio
import signal
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import replace

from tarry.local.aws.client import DEFAULT_PORT
from tarry.local.aws.embedded import EmbeddedSqs
from tarry.local.background import in_background
from tarry.local.cloud import LocalCloud, running
from tarry.local.plan import Note, RunPlan, RunSettings
from tarry.local.reloading import Reloader
from tarry.local.runs.report import RunReport, dead_letters_of
from tarry.local.show.board import Board, Outlook, View
from tarry.template.queues import with_foreign_queues
from tarry.tooling.errors import UsageError

GIVE_UP_SECONDS = 300.0
CHECK_SECONDS = 0.1


async def play(cloud: LocalCloud, outlook: Outlook, settings: RunSettings, note: Note) -> RunReport:
    """Send the records of the event and wait until all messages have settled, or cannot settle in time.

    When cancelled, return the report of the run so far.

    Raises:
        UsageError: SQS refuses a record.
    """
    began = time.monotonic()
    seconds = GIVE_UP_SECONDS if settings.give_up_seconds is None else settings.give_up_seconds
    is_interrupted = False
    await _send(cloud, outlook.board, note)
    cloud.start()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _until_settled(cloud, outlook, cloud.scheduler.now + seconds)
    except asyncio.CancelledError:
        is_interrupted = True
    messages = outlook.board.messages
    dead_letters = {}
    if isinstance(cloud.sqs, EmbeddedSqs):
        cloud.sqs.model.catch_up()
        dead_letters = dead_letters_of(messages, cloud.sqs.model, cloud.scheduler.now)
    took = time.monotonic() - began
    return RunReport(messages, dead_letters, took, is_interrupted, expected=settings.expected)


async def _send(cloud: LocalCloud, board: Board, note: Note) -> None:
    """Send the records to their queues, in the order of the event."""
    queues = with_foreign_queues(cloud.plan.template)
    for sample in cloud.plan.samples:
        request = sample.request(queues[sample.queue], cloud.sqs.urls[sample.queue])
        board.number = sample.number
        try:
            message_id = await cloud.sqs.send(request)
        except UsageError as error:
            raise UsageError(f"SQS refuses record {sample.number}: {error}") from error
        finally:
            board.number = None
        if board.numbers.setdefault(message_id, sample.number) != sample.number:
            note(f"SQS drops record {sample.number} as a duplicate: its deduplication id was sent before.")


async def _until_settled(cloud: LocalCloud, outlook: Outlook, until: float) -> None:
    while not (outlook.board.is_settled and outlook.tallies.is_idle):
        if isinstance(cloud.sqs, EmbeddedSqs) and outlook.tallies.is_idle and outlook.board.is_hopeless(until):
            return
        await asyncio.sleep(CHECK_SECONDS)


def run(plan: RunPlan, settings: RunSettings, view: View, note: Note) -> RunReport | None:
    """Run the plan: with an event, until its messages have settled; otherwise until interrupted.

    Returns:
        The report, or None without an event.

    Raises:
        UsageError: see `tarry.local.cloud.running`.
        KeyboardInterrupt: the run was interrupted before it started.
    """
    try:
        return asyncio.run(_session(plan, settings, view, note))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _session(plan: RunPlan, settings: RunSettings, view: View, note: Note) -> RunReport | None:
    _stop_on_sigterm()
    if settings.port is None and settings.event is None:
        settings = replace(settings, port=DEFAULT_PORT)
    board = Board({mapping.queue for mapping in plan.template.mappings}, view.step, forgetful=settings.event is None)
    outlook = Outlook(board, view, verbose=settings.verbose)
    reloader = Reloader(plan) if settings.watch else None
    async with AsyncExitStack() as stack:
        cloud = await stack.enter_async_context(running(plan, settings, outlook.on_event, note))
        await stack.enter_async_context(view.showing(outlook.scene(cloud)))
        if reloader is not None:
            await stack.enter_async_context(in_background(reloader.run(cloud)))
        try:
            if settings.event is not None:
                return await play(cloud, outlook, settings, note)
            await _serve(cloud)
        finally:
            outlook.is_over = True
    return None


async def _serve(cloud: LocalCloud) -> None:
    """Run until interrupted."""
    queues = ", ".join(dict.fromkeys(mapping.queue for mapping in cloud.plan.all_mappings))
    cloud.history.record(
        "noted", text=f"SQS is running at {cloud.url}. Waiting for messages in {queues}.", style="bold"
    )
    cloud.start()
    with suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()


def _stop_on_sigterm() -> None:
    """Stop on SIGTERM as on Ctrl-C, which asyncio handles."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
