"""`tarry local` in real time: run a local cloud until Ctrl-C, SIGTERM, or until all messages of an event settled."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace

from botocore.exceptions import BotoCoreError, ClientError

from tarry.failed.usage import UsageError
from tarry.tools.local.aws.client import DEFAULT_PORT, exports
from tarry.tools.local.aws.services import EmbeddedSqs
from tarry.tools.local.cloud import LocalCloud, in_background, running
from tarry.tools.local.instances import announced
from tarry.tools.local.plan import RunPlan, RunSettings
from tarry.tools.local.project import Note
from tarry.tools.local.reloading import Reloader
from tarry.tools.local.runs.report import RunReport, Waits, dead_letters_of, keep, messages_left
from tarry.tools.local.show.board import Board, Outlook, View
from tarry.tools.local.show.timeline import counted
from tarry.tools.local.stories import MOST_STORIES, answer_to, keep_stories
from tarry.tools.simulator.sqs import SqsError
from tarry.tools.template.model import with_foreign_queues

GIVE_UP_SECONDS = 300.0
CHECK_SECONDS = 0.1


Beside = Callable[[Outlook], AbstractAsyncContextManager[None]]
"""Returns a context that begins when the cloud has started, and ends before the cloud does."""


async def play(cloud: LocalCloud, outlook: Outlook, settings: RunSettings, note: Note) -> RunReport:
    """Send the records of the event and wait until all messages have settled, or cannot settle in time.

    When cancelled, return the report of the run so far. Raises `UsageError` if SQS refuses a record.
    """
    began, waits = time.monotonic(), Waits(cloud.scheduler.now, is_real=True)
    seconds = GIVE_UP_SECONDS if settings.give_up_seconds is None else settings.give_up_seconds
    is_interrupted = False
    await _send(cloud, outlook.board, note)
    cloud.start()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                until = cloud.scheduler.now + seconds
                while True:
                    if _is_over(cloud, outlook, until):
                        break
                    await asyncio.sleep(CHECK_SECONDS)
    except asyncio.CancelledError:
        is_interrupted = True
    messages = outlook.board.messages
    dead_letters = {}
    if isinstance(cloud.sqs, EmbeddedSqs):
        cloud.sqs.model.catch_up()
        dead_letters = dead_letters_of(messages, cloud.sqs.model, cloud.scheduler.now)
    pending = cloud.invoker.pending if cloud.invoker is not None else []
    return RunReport(
        messages,
        dead_letters,
        time.monotonic() - began,
        is_interrupted,
        causes=[*outlook.loops.texts(is_cut=False), *waits.for_calls(pending)],
        waits="" if is_interrupted else waits.for_messages(messages, outlook.loops.stuck),
        expected=settings.expected,
    )


async def _send(cloud: LocalCloud, board: Board, note: Note) -> None:
    """Send the records to their queues, in the order of the event."""
    queues = with_foreign_queues(cloud.plan.template)
    for sample in cloud.plan.samples:
        request = sample.request(queues[sample.queue], cloud.sqs.urls[sample.queue])
        board.number = sample.number
        try:
            message_id = await cloud.sqs.send(request)
        except (SqsError, BotoCoreError, ClientError) as refusal:
            error = getattr(refusal, "message", refusal)
            raise UsageError(f"SQS refuses record {sample.number}: {error}") from refusal
        finally:
            board.number = None
        if board.numbers.setdefault(message_id, sample.number) != sample.number:
            note(f"SQS drops record {sample.number} as a duplicate: its deduplication id was sent before.")


def _is_over(cloud: LocalCloud, outlook: Outlook, until: float) -> bool:
    """Return whether all messages and asynchronous invocations have ended, or cannot end in time."""
    if not outlook.is_idle or (cloud.invoker and any(call.due <= until for call in cloud.invoker.pending)):
        return False
    is_embedded = isinstance(cloud.sqs, EmbeddedSqs)
    return outlook.board.is_settled or (is_embedded and outlook.board.is_hopeless(until, outlook.loops.stuck))


def run(plan: RunPlan, settings: RunSettings, view: View, note: Note, beside: Beside | None = None) -> RunReport | None:
    """Run the plan: with an event, until its messages have settled, and return the report; else until interrupted.

    ``note`` is called with hints for the developer; ``beside`` runs beside the cloud, such as its console. Raises
    `UsageError` as `tarry.tools.local.cloud.running` does, `KeyboardInterrupt` if interrupted before it started.
    """
    try:
        return asyncio.run(_session(plan, settings, view, note, beside))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _session(
    plan: RunPlan, settings: RunSettings, view: View, note: Note, beside: Beside | None
) -> RunReport | None:
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # Windows; asyncio itself handles Ctrl-C so
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if settings.port is None and settings.event is None:
        settings = replace(settings, port=DEFAULT_PORT)
    board = Board({mapping.queue for mapping in plan.all_mappings}, view.step, forgetful=settings.event is None)
    outlook = Outlook(board, view, verbose=settings.verbose)
    reloader = Reloader(plan, settings) if settings.watch else None
    report: RunReport | None = None
    async with AsyncExitStack() as stack:
        cloud = await stack.enter_async_context(running(plan, settings, outlook.on_event, note))
        outlook.cloud, board.consumed = cloud, cloud.consumed
        await stack.enter_async_context(view.showing(outlook.scene))
        if reloader is not None:
            await stack.enter_async_context(in_background(reloader.run(cloud)))
        if isinstance(cloud.sqs, EmbeddedSqs):
            cloud.sqs.model.find_story = lambda wanted: answer_to(board.stories_of(wanted, cloud.scheduler.now), wanted)
            cloud.sqs.model.latest_errors = lambda: outlook.scene().latest_errors
            if settings.event is None:
                stack.enter_context(announced(cloud.url, plan.template.path))
        if beside is not None:
            await stack.enter_async_context(beside(outlook))
        try:
            if settings.event is not None:
                report = await play(cloud, outlook, settings, note)
            else:
                await _serve(cloud)
        finally:
            outlook.is_over = True
            keep_stories(plan.template.path, board.stories(cloud.scheduler.now, MOST_STORIES))
    left = _left(cloud, settings)
    if report is not None:
        return replace(report, left=left)
    note(f"Messages finished: {counted(board.ended) or 'none'}.")
    note(left)
    return None


def _left(cloud: LocalCloud, settings: RunSettings) -> str:
    """Write the messages that are left to a file, if there is one; return a text about them."""
    if not isinstance(cloud.sqs, EmbeddedSqs):
        return ""
    model = cloud.sqs.model
    if settings.keep is not None:
        return keep(settings.keep, model, cloud.plan.template, cloud.scheduler.now)
    left = messages_left(model)
    if not left or settings.event is not None:
        return ""
    return f"Left in the queues, and now deleted with them: {left}. To keep such messages in a file, use --keep FILE."


async def _serve(cloud: LocalCloud) -> None:
    """Run until interrupted."""
    queues = cloud.consumed
    waiting = f"Waiting for messages in {', '.join(queues)}." if queues else "No function runs."
    cloud.note(f"SQS is running at {cloud.url}. {waiting}", "bold")
    cloud.note("\n".join(_hints(cloud, queues)), "")
    cloud.start()
    with suppress(asyncio.CancelledError):
        await asyncio.get_running_loop().create_future()


def _hints(cloud: LocalCloud, queues: Sequence[str]) -> Iterator[str]:
    """Yield commands that use the cloud from another terminal."""
    template = cloud.plan.template
    if isinstance(cloud.sqs, EmbeddedSqs):
        yield "To use the AWS SDK or CLI in another terminal:"
        yield from exports(cloud.url, cloud.sqs.others, template.region)
    sources = [template.queues[queue] for queue in queues if queue in template.queues]
    # What a function consumes is not there to be shown.
    if dead_letters := next((each.dead_letters for each in sources if each.dead_letters not in (None, *queues)), None):
        yield "To see why messages were dead-lettered:"
        yield f"tarry failed show --queue {dead_letters} --endpoint-url {cloud.url}"
