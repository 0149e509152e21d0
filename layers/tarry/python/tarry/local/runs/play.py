"""One event played in real time: its records, from their queues through their functions until all have settled."""

import asyncio
import time
from contextlib import suppress

from tarry.local.aws.embedded import EmbeddedSqs
from tarry.local.cloud import Cloud
from tarry.local.plan import Note, Settings
from tarry.local.runs.aftermath import letters_of
from tarry.local.runs.report import Report
from tarry.local.show.board import Board
from tarry.local.show.outlook import Outlook
from tarry.template.queues import with_foreign_queues
from tarry.tooling.errors import UsageError

GIVE_UP_SECONDS = 300.0
LOOK_SECONDS = 0.1


async def play(cloud: Cloud, outlook: Outlook, settings: Settings, note: Note) -> Report:
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
    stories = outlook.board.stories
    letters = {}
    if isinstance(cloud.sqs, EmbeddedSqs):
        cloud.sqs.model.settle_time()
        letters = letters_of(stories, cloud.sqs.model, cloud.timeline.now)
    took = time.monotonic() - began
    return Report(stories, letters, took, is_interrupted, expected=settings.expected)


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
