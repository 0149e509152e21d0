"""Retry dead letters through their queues or in this process: in bulk, edited, or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry import failed
from tarry.cli.errors import note
from tarry.cli.failed.prompts import DeadLetterPrompt, NoEditor, in_editor
from tarry.failed.result import Result, skipped
from tarry.sqs.topology import Topology
from tarry.world import current

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tarry.cli.failed.handlers import Handlers
    from tarry.cli.failed.session import CommandSession
    from tarry.failed import DeadLetterMessage, DeadLetterQueue, Inspection, Routes, Selection


class RetryMethod:
    """The way to retry dead letters: back to their queues, or through their handlers in this process."""

    def __init__(self, run: CommandSession, to: str | None, *, local: bool) -> None:
        self._to = to
        self._run = run
        self._handlers = self._load() if local else None

    def routes(self, queue: DeadLetterQueue) -> Routes:
        return failed.Routes(queue, self._to, self._run.targets.known)

    def retry(self, inspection: Inspection, selection: Selection, routes: Routes, concurrency: int) -> Iterator[Result]:
        if self._handlers is not None:
            return failed.run(inspection, selection, routes, self._handlers.of)
        if not selection.ids:
            most = 10 * concurrency
            note(f"if this process is killed, up to {most} messages may be delivered twice, under the same stable id")
        return failed.retry(inspection, selection, routes, concurrency=concurrency)

    def one(self, inspection: Inspection, dead_letter: DeadLetterMessage, routes: Routes) -> Result:
        if self._handlers is not None:
            return failed.run_dead_letter(inspection, dead_letter, routes, self._handlers.of)
        return failed.retry_dead_letters(inspection, [dead_letter], routes)[0]

    def _load(self) -> Handlers:
        """Import all handlers that may be needed, before any message is sent or deleted."""
        from tarry.cli.failed.handlers import Handlers

        run = self._run
        routes = [self.routes(queue) for queue in run.queues]
        targets = [route.to for route in routes if route.to] or [
            source for queue in run.queues for source in queue.sources or ()
        ]
        beside = run.queues[0].arn

        def url_of(name: str) -> str:
            return current().keep(Topology).url(beside.sibling(name))

        return Handlers(run.targets, dict.fromkeys(each.name for each in targets), url_of, run.where, run.stopping)


def ask_for_each(run: CommandSession, inspection: Inspection, method: RetryMethod, routes: Routes) -> Iterator[Result]:
    """Show each dead letter and carry out the user's choice."""
    failed.check_may_delete(inspection)
    prompt = DeadLetterPrompt(
        run.guidance,
        run.stopping,
        retry=lambda dead_letter: method.one(inspection, dead_letter, routes),
        delete=lambda dead_letter: failed.remove_dead_letters(inspection, [dead_letter])[0],
        skip=lambda dead_letter: skipped(dead_letter, "you chose to skip it"),
    )
    return prompt.dead_letters(inspection)


def edit_and_retry(
    run: CommandSession, inspection: Inspection, ids: Iterable[str], method: RetryMethod, routes: Routes
) -> Iterator[Result]:
    """Open the body of each of these dead letters in the editor, then retry it."""
    failed.check_may_delete(inspection)
    shown = failed.show(inspection, failed.select(ids))
    for dead_letter in shown.dead_letters:
        routes.target(dead_letter)
    for dead_letter in shown.dead_letters:
        if run.stopping():
            return
        try:
            edited = failed.edit(dead_letter, in_editor(dead_letter.body), current().clock.time())
        except (NoEditor, failed.CannotEdit) as error:
            yield Result(dead_letter.id, "failed", str(error), dead_letter=dead_letter)
            continue
        yield (
            skipped(dead_letter, "you did not change its body")
            if edited is dead_letter
            else method.one(inspection, edited, routes)
        )
    for each in shown.missing:
        yield Result(each, "failed", failed.not_found(inspection))
