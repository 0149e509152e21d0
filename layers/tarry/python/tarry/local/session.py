"""`tarry local` in real time: a cloud from its start to Ctrl-C, SIGTERM or the end of an event's messages."""

import asyncio
import signal
import time
from contextlib import suppress
from dataclasses import replace

from tarry.local.aws.client import DEFAULT_PORT
from tarry.local.aws.embedded import EmbeddedSqs
from tarry.local.cloud import Cloud, running
from tarry.local.plan import Note, RunPlan, RunSettings
from tarry.local.runs.report import RunReport, dead_letters_of
from tarry.local.show.board import Board, Outlook, View
from tarry.template.queues import with_foreign_queues
from tarry.tooling.errors import UsageError

GIVE_UP_SECONDS = 300.0
LOOK_SECONDS = 0.1


async def play(cloud: Cloud, outlook: Outlook, settings: RunSettings, note: Note) -> RunReport:
    """Send the event's records, and wait until every message has settled, or nothing more can happen in time.

    Cancelled, it tells what is known so far.

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
                await _until_settled(cloud, outlook, cloud.timeline.now + seconds)
    except asyncio.CancelledError:
        is_interrupted = True
    messages = outlook.board.messages
    dead_letters = {}
    if isinstance(cloud.sqs, EmbeddedSqs):
        cloud.sqs.model.catch_up()
        dead_letters = dead_letters_of(messages, cloud.sqs.model, cloud.timeline.now)
    took = time.monotonic() - began
    return RunReport(messages, dead_letters, took, is_interrupted, expected=settings.expected)


async def _send(cloud: Cloud, board: Board, note: Note) -> None:
    """Put the records in their queues, in the order of the event."""
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
            note(f"SQS swallows record {sample.number}: its deduplication id was sent before.")


async def _until_settled(cloud: Cloud, outlook: Outlook, until: float) -> None:
    while not (outlook.board.is_settled and outlook.tallies.is_idle):
        if isinstance(cloud.sqs, EmbeddedSqs) and outlook.tallies.is_idle and outlook.board.is_hopeless(until):
            return
        await asyncio.sleep(LOOK_SECONDS)


def run(plan: RunPlan, settings: RunSettings, view: View, note: Note) -> RunReport | None:
    """Run the plan: with an event until that is over, which is reported; else until the cloud is told to end.

    Raises:
        UsageError: see `tarry.local.cloud.running`.
        KeyboardInterrupt: it was told to end before it had begun.
    """
    try:
        return asyncio.run(_session(plan, settings, view, note))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _session(plan: RunPlan, settings: RunSettings, view: View, note: Note) -> RunReport | None:
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
