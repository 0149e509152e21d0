"""Jobs: scans, retries and removals that run in threads of the console, also after their page is closed.

One job runs on a queue at a time. A job that is stopped finishes its current dead letters, and releases the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Literal, NamedTuple

from aiohttp import web

from tarry.failed import Result
from tarry.failed.text import progress_text
from tarry.tools.console.access import Problem

Work = Callable[["QueueJob"], None]


Kind = Literal["scan", "retry", "dry run", "remove", "edit"]

NOUNS: dict[Kind, str] = {
    "scan": "scan",
    "retry": "retry",
    "dry run": "dry run of a retry",
    "remove": "removal",
    "edit": "retry of an edited message",
}
CAME_BACK = "stopped: messages came back"
MAX_PROBLEMS = 200
"""The results of a job that its page lists; all are counted."""
MAX_JOBS = 50
PUBLISH_SECONDS = 0.25
STOP_SECONDS = 30.0
"""The longest time that the end of the console waits for the current dead letters of its jobs."""


class Line(NamedTuple):
    """The result of one dead letter, as the page of a job lists it."""

    id: str
    outcome: str
    why: str


class QueueJob:
    """A job. Its thread reports to it; pages read a `view`. All methods can be called from any thread."""

    def __init__(
        self, number: int, kind: Kind, queue: str, title: str, total: int, again: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.number = number
        self.kind: Kind = kind
        self.queue = queue
        self.title = title
        self.again = tuple(again)
        """Of a dry run: the fields of the form that starts the retry itself."""
        self.thread = threading.current_thread()
        self.changed: Callable[[QueueJob], None] = lambda _: None
        """Called when it has changed: often at an end of a step, seldom in between."""
        self.counts: Counter[str] = Counter()
        self.expected = total
        """The number of dead letters that it should work on; of a scan, about how many there are."""
        self.phase = ""
        self.lines: Sequence[Line] = ()
        self.notes: Sequence[str] = ()
        self.error = ""
        self.came_back = ""
        """A sentence about messages that came back, so that no others were retried; empty if none did."""
        self.began_at = time.time()
        self.ended_at: float | None = None
        self._began = time.monotonic()
        self._ended: float | None = None
        self._received, self._about = 0, total
        self._listed = 0
        self._is_stopping = False
        self._lock = threading.Lock()
        self._published_at = 0.0

    def view(self) -> QueueJob:
        """Return a copy as it is now, which does not change while a page is made of it."""
        with self._lock:
            found = copy(self)
            found.counts = Counter(self.counts)
        return found

    @property
    def state(self) -> str:
        """``running``, ``stopping``, ``done``, ``stopped`` or ``failed``."""
        if self.ended_at is None:
            return "stopping" if self._is_stopping else "running"
        if self.error:
            return "failed"
        return "stopped" if self._is_stopping or self.came_back else "done"

    @property
    def state_text(self) -> str:
        if self.state == "stopping":
            return "stopping after the current dead letters"
        return CAME_BACK if self.came_back and self.state == "stopped" else self.state

    @property
    def is_active(self) -> bool:
        return self.ended_at is None

    @property
    def seconds(self) -> float:
        return (self._ended or time.monotonic()) - self._began

    @property
    def done(self) -> int:
        return self._received if self.kind == "scan" else self.counts.total()

    @property
    def total(self) -> int:
        return max(self._about if self.kind == "scan" else self.expected, self.done, 1)

    @property
    def progress(self) -> str:
        """The progress as text: of a scan, in a queue that SQS counts approximately; otherwise exactly."""
        if self.kind == "scan":
            return progress_text(self.done, self._about, self.seconds)
        text = progress_text(self.done, self.expected, self.seconds, is_exact=True)
        looks_through_others = self._about > self.expected and self._received > self.done
        return text + f"; received {self._received:,} of about {self._about:,} in the queue" * looks_through_others

    @property
    def more_lines(self) -> int:
        """The number of earlier results that are not listed any more."""
        return self._listed - len(self.lines)

    def stop(self) -> None:
        """Ask it to stop after its current dead letters. After its end, this has no effect."""
        with self._lock:
            if not self.is_active:
                return
            self._is_stopping = True
        self.changed(self)

    def should_stop(self) -> bool:
        return self._is_stopping

    def at(self, received: int | None = None, about: int | None = None, phase: str | None = None) -> None:
        """Update the number received, the approximate total and the phase; None leaves a value as it is."""
        with self._lock:
            self._received = self._received if received is None else received
            self._about = self._about if about is None else about
            self.phase = self.phase if phase is None else phase
            now = time.monotonic()
            if now - self._published_at < PUBLISH_SECONDS:
                return
            self._published_at = now
        self.changed(self)

    def add(self, result: Result, *, lists: bool = False) -> None:
        """Count a result, and list it if it is a problem, or ``lists``."""
        with self._lock:
            self.counts[result.outcome] += 1
            why = result.error or result.note or ""
            if lists or why:
                self._listed += 1
                self.lines = [*self.lines, Line(result.id, result.outcome, why)][-MAX_PROBLEMS:]

    def note(self, text: str) -> None:
        """Add a sentence about what has happened."""
        self.notes = [*self.notes, text]

    def end(self, error: str = "") -> None:
        """End it, with the text of an error if it failed."""
        with self._lock:
            self.error = error
            self._ended, self.ended_at = time.monotonic(), time.time()
        self.changed(self)


class Busy(Problem):
    """Another job runs on this queue."""

    def __init__(self, job: QueueJob) -> None:
        self.job = job.view()
        progress = self.job.phase or self.job.progress
        super().__init__(
            f"A {NOUNS[job.kind]} runs on {job.queue} ({progress}). Wait for its end, or stop it first.", 409
        )


class QueueJobs:
    """The jobs of a console, the newest last."""

    def __init__(self, run: Callable[[Callable[[], None]], None], explain: Callable[[Exception], str | None]) -> None:
        """``run`` calls a function in the world of the console. ``explain`` returns the text of an expected error."""
        self.changed: Callable[[QueueJob], None] = lambda _: None
        self._run = run
        self._explain = explain
        self._jobs: dict[int, QueueJob] = {}
        self._last = 0
        self._lock = threading.Lock()

    def start(
        self, kind: Kind, queue: str, title: str, total: int, work: Work, *, again: Iterable[tuple[str, str]] = ()
    ) -> QueueJob:
        """Start a job in a thread. ``again``: of a dry run, the form that starts the retry itself. Raises `Busy`."""
        with self._lock:
            if (active := self.active(queue)) is not None:
                raise Busy(active)
            self._last += 1
            job = QueueJob(self._last, kind, queue, title, total, again)
            job.changed = self.changed
            self._jobs[job.number] = job
            # Only jobs that have ended are forgotten: the others must be stopped at the end of the console.
            for number in [each.number for each in self._jobs.values() if not each.is_active][: -MAX_JOBS or None]:
                del self._jobs[number]
            # A daemon: a second signal ends the console at once, as it ends the command.
            job.thread = threading.Thread(target=self._work, args=(job, work), daemon=True)
            job.thread.start()
        self.changed(job)
        return job

    def active(self, queue: str) -> QueueJob | None:
        return next((each for each in self._jobs.values() if each.queue == queue and each.is_active), None)

    def returned_since(self, queue: str, at: float) -> QueueJob | None:
        """Return the last job on a queue that ended after a time because messages came back; None without one."""
        found = (each for each in self.all() if each.queue == queue and each.came_back)
        return next((each for each in found if (each.ended_at or 0) > at), None)

    def get(self, number: int) -> QueueJob | None:
        return self._jobs.get(number)

    def all(self) -> list[QueueJob]:
        """Return the jobs, the newest first."""
        return [*self._jobs.values()][::-1]

    def close(self) -> None:
        """Stop all jobs, and wait until they have finished their current dead letters and released the others."""
        with self._lock:
            jobs = self.all()
        for job in jobs:
            job.stop()
        ends_at = time.monotonic() + STOP_SECONDS
        for job in jobs:
            job.thread.join(max(0.0, ends_at - time.monotonic()))

    def _work(self, job: QueueJob, work: Work) -> None:
        error = ""
        try:
            self._run(lambda: work(job))
        except Exception as problem:
            error = self._explain(problem) or ""
            if not error:
                error = f"This is a bug in tarry: {problem!r}"
                raise
        finally:
            job.end(error)


JOBS = web.AppKey("jobs", QueueJobs)
