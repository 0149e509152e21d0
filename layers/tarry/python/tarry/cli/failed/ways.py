"""How letters are retried: back to their queues or through their handlers here; in bulk, edited, or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tarry import failed
from tarry.cli.failed.asking import Asking
from tarry.cli.failed.editing import NoEditor, in_editor
from tarry.cli.failed.reporting import note
from tarry.failed.result import Result, skipped
from tarry.sqs.topology import Topology
from tarry.world import current

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tarry.cli.failed.handlers import Handlers
    from tarry.cli.failed.job import Job
    from tarry.failed import DeadLetterQueue, Letter, Look, Routes, Selection


class Way:
    """How letters are retried: back to their queues, or through their handlers here."""

    def __init__(self, job: Job, to: str | None, *, local: bool) -> None:
        self._to = to
        self._job = job
        self._handlers = self._load() if local else None

    def routes(self, queue: DeadLetterQueue) -> Routes:
        return failed.Routes(queue, self._to, self._job.place.known)

    def retry(self, look: Look, selection: Selection, routes: Routes, concurrency: int) -> Iterator[Result]:
        if self._handlers is not None:
            return failed.run(look, selection, routes, self._handlers.of)
        if not selection.ids:
            most = 10 * concurrency
            note(f"if this process is killed, at most {most} letters may then arrive twice, under one id of tarry's")
        return failed.retry(look, selection, routes, concurrency=concurrency)

    def one(self, look: Look, letter: Letter, routes: Routes) -> Result:
        if self._handlers is not None:
            return failed.run_letter(look, letter, routes, self._handlers.of)
        return failed.retry_letters(look, [letter], routes)[0]

    def _load(self) -> Handlers:
        """All handlers that may be wanted, before anything is touched."""
        from tarry.cli.failed.handlers import Handlers

        job = self._job
        routes = [self.routes(queue) for queue in job.queues]
        targets = [route.to for route in routes if route.to] or [
            source for queue in job.queues for source in queue.sources or ()
        ]
        beside = job.queues[0].arn

        def url_of(name: str) -> str:
            return current().keep(Topology).url(beside.sibling(name))

        return Handlers(job.place, dict.fromkeys(each.name for each in targets), url_of, job.where, job.stopping)


def asked(job: Job, look: Look, way: Way, routes: Routes) -> Iterator[Result]:
    """Letter by letter, with a person."""
    failed.check_may_delete(look)
    asking = Asking(
        job.guidance,
        job.stopping,
        retry=lambda letter: way.one(look, letter, routes),
        delete=lambda letter: failed.remove_letters(look, [letter])[0],
        skip=lambda letter: skipped(letter, "as you said"),
    )
    return asking.letters(look)


def edited(job: Job, look: Look, ids: Iterable[str], way: Way, routes: Routes) -> Iterator[Result]:
    """Those with these ids, each with its body edited first."""
    failed.check_may_delete(look)
    shown = failed.show(look, failed.select(ids))
    for letter in shown.letters:
        routes.target(letter)
    for letter in shown.letters:
        if job.stopping():
            return
        try:
            edited = failed.edit(letter, in_editor(letter.body), current().clock.time())
        except (NoEditor, failed.CannotEdit) as error:
            yield Result(letter.id, "failed", str(error), letter=letter)
            continue
        yield skipped(letter, "its body was not changed") if edited is letter else way.one(look, edited, routes)
    for each in shown.missing:
        yield Result(each, "failed", failed.not_found(look))
