"""Jobs: scans, retries and removals that run in threads of the console, also after their page is closed.

One job runs on a queue at a time. A job that is stopped finishes its current dead letters, and releases the others.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Literal, NamedTuple

from aiohttp import web

from tarry.errors import TarryError
from tarry.failed.text import progress_text
from tarry.failed.wording import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tarry.failed import Result

Kind = Literal["scan", "retry", "dry run", "remove", "edit"]
State = Literal["running", "stopping", "done", "stopped", "failed"]

NOUNS: dict[Kind, str] = {
    "scan": "scan",
    "retry": "retry",
    "dry run": "dry run of a retry",
    "remove": "removal",
    "edit": "retry of an edited message",
}
STATES: dict[State, str] = {
    "running": "running",
    "stopping": "stopping after the current dead letters",
    "done": "done",
    "stopped": "stopped",
    "failed": "failed",
}
WOULD_BE = {"retried": "would be retried", "failed": "would fail", "skipped": "would be skipped"}
DONE_WORDS = {"deleted": "removed"}
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


class JobView(NamedTuple):
    """A job as a page shows it, at one moment."""

    number: int
    kind: Kind
    queue: str
    title: str
    state: State
    state_text: str
    progress: str
    done: int
    total: int
    phase: str
    counts: tuple[tuple[str, int], ...]
    lines: tuple[Line, ...]
    more_lines: int
    notes: tuple[str, ...]
    error: str
    came_back: str
    """A sentence about messages that came back, so that no others were retried; empty if none did."""
    again: tuple[tuple[str, str], ...]
    """Of a dry run: the fields of the form that starts the retry itself."""
    began_at: float
    ended_at: float | None
    seconds: float

    @property
    def results(self) -> list[tuple[str, str, int]]:
        """The outcomes, in words, and their counts."""
        return [(name, self.words(name), count) for name, count in self.counts]

    def words(self, outcome: str) -> str:
        """Return an outcome in words: that of a dry run did not happen."""
        return (WOULD_BE if self.kind == "dry run" else DONE_WORDS).get(outcome, outcome)

    @property
    def retried(self) -> int:
        """The dead letters that were retried, or that a dry run would retry."""
        return dict(self.counts).get("retried", 0)

    @property
    def is_active(self) -> bool:
        return self.state in ("running", "stopping")


class QueueJob:
    """A job. Its thread reports to it; pages read its `view`. All methods can be called from any thread."""

    def __init__(
        self, number: int, kind: Kind, queue: str, title: str, total: int, again: Iterable[tuple[str, str]] = ()
    ) -> None:
        self.number = number
        self.kind: Kind = kind
        self.queue = queue
        self.title = title
        self.again = tuple(again)
        self.changed: Callable[[QueueJob], None] = lambda _: None
        """Called when it has changed: often at an end of a step, seldom in between."""
        self.counts: Counter[str] = Counter()
        self.began_at = time.time()
        self.ended_at: float | None = None
        self._began = time.monotonic()
        self._ended: float | None = None
        self.expected = total
        """The number of dead letters that it should work on; of a scan, about how many there are."""
        self._done = 0
        self._total = total
        self._phase = ""
        self._lines: deque[Line] = deque(maxlen=MAX_PROBLEMS)
        self._listed = 0
        self._notes: list[str] = []
        self._error = ""
        self._came_back = ""
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self._published_at = 0.0
        self._announced: State | None = None

    # from pages

    @property
    def state(self) -> State:
        if self.ended_at is None:
            return "stopping" if self._is_stopping.is_set() else "running"
        if self._error:
            return "failed"
        return "stopped" if self._is_stopping.is_set() or self._came_back else "done"

    @property
    def is_active(self) -> bool:
        return self.ended_at is None

    def stop(self) -> None:
        """Ask it to stop after its current dead letters. After its end, this has no effect."""
        with self._lock:
            if not self.is_active:
                return
            self._is_stopping.set()
        self.changed(self)

    def view(self) -> JobView:
        """Return what a page shows."""
        with self._lock:
            state = self.state
            seconds = (self._ended or time.monotonic()) - self._began
            done, total = (self._done, self._total) if self.kind == "scan" else (self._handled, self.expected)
            return JobView(
                self.number,
                self.kind,
                self.queue,
                self.title,
                state,
                CAME_BACK if self._came_back and state == "stopped" else STATES[state],
                self._progress(seconds) if self.is_active and not self._phase else "",
                done,
                max(total, done, 1),
                self._phase if self.is_active else "",
                tuple((name, count) for name, count in self.counts.items() if count),
                tuple(self._lines),
                self._listed - len(self._lines),
                tuple(self._notes),
                self._error,
                self._came_back,
                self.again,
                self.began_at,
                self.ended_at,
                seconds,
            )

    @property
    def _handled(self) -> int:
        return self.counts.total()

    def _progress(self, seconds: float) -> str:
        """Return the progress as text: of a scan, in a queue that SQS counts approximately; otherwise exactly."""
        if self.kind == "scan":
            return progress_text(self._done, self._total, seconds)
        text = progress_text(self._handled, self.expected, seconds, is_exact=True)
        looks_through_others = self._total > self.expected and self._done > self._handled
        return text + (f"; received {self._done:,} of about {self._total:,} in the queue" * looks_through_others)

    def announces(self, state: State) -> bool:
        """Whether this state is another one than at the last call."""
        before, self._announced = self._announced, state
        return before != state

    # from its thread

    def should_stop(self) -> bool:
        return self._is_stopping.is_set()

    def at(self, done: int | None = None, total: int | None = None, phase: str | None = None) -> None:
        with self._lock:
            self._done = self._done if done is None else done
            self._total = self._total if total is None else total
            self._phase = self._phase if phase is None else phase
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
                self._lines.append(Line(result.id, result.outcome, why))

    def note(self, text: str) -> None:
        """Add a sentence about what has happened."""
        with self._lock:
            self._notes.append(text)

    def returned(self, text: str) -> None:
        """Report that messages came back, so that no others are retried."""
        with self._lock:
            self._came_back = text

    def end(self, error: str = "") -> None:
        """End it, with the text of an error if it failed."""
        with self._lock:
            self._error = error
            self._ended, self.ended_at = time.monotonic(), time.time()
        self.changed(self)


class Busy(TarryError):
    """Another job runs on this queue."""

    def __init__(self, job: QueueJob) -> None:
        self.job = job
        view = job.view()
        super().__init__(
            f"A {NOUNS[job.kind]} runs on {job.queue} ({view.progress or view.phase or count_of(view.done)}). "
            "Wait for its end, or stop it first."
        )


class QueueJobs:
    """The jobs of a console, the newest last."""

    def __init__(self, run: Callable[[Callable[[], None]], None], explain: Callable[[Exception], str | None]) -> None:
        """``run`` calls a function in the world of the console. ``explain`` returns the text of an expected error."""
        self.changed: Callable[[QueueJob], None] = lambda _: None
        self._run = run
        self._explain = explain
        self._jobs: dict[int, QueueJob] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._last = 0
        self._is_closed = False
        self._lock = threading.Lock()

    def start(
        self,
        kind: Kind,
        queue: str,
        title: str,
        total: int,
        work: Callable[[QueueJob], None],
        *,
        again: Iterable[tuple[str, str]] = (),
    ) -> QueueJob:
        """Start a job in a thread of its own. ``again``: of a dry run, the form that starts the retry itself.

        Raises `Busy`.
        """
        with self._lock:
            if (active := self.active(queue)) is not None:
                raise Busy(active)
            self._last += 1
            job = QueueJob(self._last, kind, queue, title, total, again)
            job.changed = self.changed
            self._jobs[job.number] = job
            for number in [each.number for each in self._jobs.values() if not each.is_active][: -MAX_JOBS or None]:
                del self._jobs[number]
            # A daemon: a second signal ends the console at once, as it ends the command.
            thread = threading.Thread(target=self._work, args=(job, work), daemon=True, name=f"tarry-job-{job.number}")
            self._threads[job.number] = thread
            thread.start()
        self.changed(job)
        return job

    def active(self, queue: str) -> QueueJob | None:
        return next((each for each in self._jobs.values() if each.queue == queue and each.is_active), None)

    def returned_since(self, queue: str, at: float) -> JobView | None:
        """Return the last job on a queue that ended after a time because messages came back; None without one."""
        views = (each.view() for each in self.all() if each.queue == queue)
        return next((each for each in views if each.came_back and (each.ended_at or 0) > at), None)

    def get(self, number: int) -> QueueJob | None:
        return self._jobs.get(number)

    def all(self) -> list[QueueJob]:
        """Return the jobs, the newest first."""
        return [*self._jobs.values()][::-1]

    def close(self) -> None:
        """Stop all jobs, and wait until they have finished their current dead letters and released the others."""
        for job in self.all():
            job.stop()
        ends_at = time.monotonic() + STOP_SECONDS
        for thread in list(self._threads.values()):
            thread.join(max(0.0, ends_at - time.monotonic()))

    def _work(self, job: QueueJob, work: Callable[[QueueJob], None]) -> None:
        error = ""
        try:
            self._run(lambda: work(job))
        except Exception as problem:
            error = self._explain(problem) or f"This is a bug in tarry: {problem!r}"
            if self._explain(problem) is None:
                raise
        finally:
            self._threads.pop(job.number, None)
            job.end(error)


JOBS = web.AppKey("jobs", QueueJobs)
