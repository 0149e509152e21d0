"""Checks that no test leaves anything behind that another test, or the machine, would find.

Each test: a process, a thread, a temporary file, another clock, environment, working directory or signal handler fails
the test that left it. The whole run: every process that it starts inherits a mark in its environment, which identifies
it in `/proc`; one that is still there at the end fails the run, is listed with its test, and is ended.
Where there is no `/proc`, processes are not checked.
"""

import asyncio
import datetime as dt
import gc
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

MARK = "TARRY_TEST_RUN"
PATIENCE_SECONDS = 30.0
"""How long a process or thread that is ending may take on a busy machine."""
ENDS_WITH_ITS_PARENT = "from multiprocessing.resource_tracker import main"
"""The command of the resource tracker, a helper process that `multiprocessing` starts."""
REMOVED_AT_EXIT = ("tarry-code-", "pymp-")
"""Directories that a process keeps: unpacked inline code of all templates, and that of `multiprocessing`."""
ABANDONED = {
    "actor": "a function of the simulator that was killed and catches the exception",
    "OtelBatchSpanRecordProcessor": "of a global tracer, which a process has once",
    "(process_request_thread)": "a connection that a client of a server in a test keeps",
    "(work)": "a console request that goes on after its page was left",
}
"""The ends of the names of threads that nothing can end, with the reasons."""
CLOCKS = (
    ("time.time", lambda: time.time),
    ("time.time_ns", lambda: time.time_ns),
    ("time.monotonic", lambda: time.monotonic),
    ("time.perf_counter", lambda: time.perf_counter),
    ("time.sleep", lambda: time.sleep),
    ("asyncio.sleep", lambda: asyncio.sleep),
    ("datetime.datetime", lambda: dt.datetime),
)
_OF_THE_RUN = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION", "TARRY_MUTANTS_TEST")
"""Environment variables that pytest and the recorder of `make mutants` set for each test."""


class Leftovers:
    """A pytest plugin for the process that starts the run; it also sees the processes of pytest-xdist's workers."""

    def __init__(self) -> None:
        self._before = os.environ.get(MARK)
        self._mark = uuid.uuid4().hex
        os.environ[MARK] = self._mark
        self._found: dict[int, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._found = _remaining(lambda: marked(self._mark))
        for process_id in self._found:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        if self._found:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._found:
            terminalreporter.section("processes left behind", red=True)
            for process_id, command in self._found.items():
                terminalreporter.line(f"{process_id} {command}")

    def pytest_unconfigure(self) -> None:
        del os.environ[MARK]
        if self._before is not None:
            os.environ[MARK] = self._before


class State(NamedTuple):
    """The state that a test must leave as it was."""

    clocks: Mapping[str, object]
    environment: Mapping[str, str]
    folder: str
    alarm: object
    threads: frozenset[threading.Thread]
    processes: frozenset[int]
    files: frozenset[str]

    @classmethod
    def now(cls) -> "State":
        frames = sys._current_frames()
        return cls(
            clocks={name: clock() for name, clock in CLOCKS},
            environment={name: value for name, value in os.environ.items() if name not in _OF_THE_RUN},
            folder=str(Path.cwd()),
            alarm=(signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0)),
            threads=frozenset(each for each in threading.enumerate() if not _is_kept(each, frames)),
            processes=frozenset(_children()) | frozenset(_children()),  # Linux may leave one out while another ends
            files=frozenset(
                str(path) for path in Path(tempfile.gettempdir()).iterdir() if not path.name.startswith(REMOVED_AT_EXIT)
            ),
        )


class LeftoversOfTests:
    """A pytest plugin for each process that runs tests.

    Whatever a fixture that several tests share starts or sets is not a leftover. When such a fixture ends, only threads
    and processes are compared.
    """

    def __init__(self) -> None:
        self._before = State.now()
        self._shared_ended = False

    def pytest_collection_finish(self) -> None:
        self._before = State.now()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._shared_ended = False

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._before = State.now()

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._shared_ended |= fixturedef.scope != "function"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            result = yield
        except BaseException:
            self._before = State.now()
            raise
        getattr(item, "funcargs", {}).clear()  # what refers to fixtures would be kept for ever
        gc.collect()  # what an object of this test raises at its end is this test's error, not the next one's
        gc.freeze()  # what it has loaded stays, and would be looked at again and again
        if found := list(self._left()):
            pytest.fail(f"{item.nodeid} leaves behind: {'; '.join(found)}", pytrace=False)
        return result

    def _left(self) -> Iterator[str]:
        before, now = self._before, State.now()
        if now.threads - before.threads or now.processes - before.processes:
            _remaining(lambda: [*(State.now().threads - before.threads), *(State.now().processes - before.processes)])
            now = State.now()
        self._before = now  # what this test left is not a leftover of the next one
        yield from (f"the thread {each.name}" for each in now.threads - before.threads)
        for process_id in now.processes - before.processes:
            yield f"the process {process_id} {_command(process_id)}"
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        if self._shared_ended:
            return
        yield from (f"another {name}" for name, clock in now.clocks.items() if clock is not before.clocks[name])
        if now.alarm != before.alarm:
            yield "another handler of SIGALRM, or an alarm"
        yield from (f"the temporary file {each}" for each in sorted(now.files - before.files))
        if now.folder != before.folder:
            yield f"the working directory {now.folder}"
        for name in sorted({*now.environment, *before.environment}):
            if (value := now.environment.get(name)) != before.environment.get(name):
                yield f"the environment variable {name} = {value}"


def _remaining(found: Callable[[], Any]) -> Any:
    """Return what is found when nothing is any more, or after a while."""
    ends_at = time.monotonic() + PATIENCE_SECONDS
    while (left := found()) and time.monotonic() < ends_at:
        time.sleep(0.02)
    return left


def _is_kept(thread: threading.Thread, frames: Mapping[int, FrameType]) -> bool:
    """Whether a thread cannot be ended, or waits for its next job and is tarry's or of an event loop."""
    frame, names = frames.get(thread.ident or 0), []
    while frame:
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    waits = (name for name in names if not name.endswith(".wait"))
    of_loop = names[:1] == ["_worker"] and thread.name.startswith("asyncio_")
    return thread.name.endswith(tuple(ABANDONED)) or of_loop or next(waits, "") == "Worker._serve"


def _children() -> Iterator[int]:
    """Yield the running child processes: those of this process, and those of the server that forks commands."""
    server = getattr(forkserver._forkserver, "_forkserver_pid", None)
    for parent in filter(None, (os.getpid(), server)):
        for file in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):
                yield from (each for each in map(int, file.read_text().split()) if each != server and _runs(each))


def _runs(process_id: int) -> bool:
    """Whether a process has not ended; in the middle of its start, it has no command yet."""
    with suppress(OSError):
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and ENDS_WITH_ITS_PARENT not in _text(process_id)
    return False


def _text(process_id: int) -> str:
    return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _command(process_id: int) -> str:
    """Return the command of a process, or nothing for one that has ended and for a helper of `multiprocessing`."""
    with suppress(OSError):
        command = _text(process_id)
        return "" if ENDS_WITH_ITS_PARENT in command else command
    return ""


def marked(mark: str) -> dict[int, str]:
    """Return the commands of the other running processes whose environment contains ``mark``, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            environment, process_id = (folder / "environ").read_bytes(), int(folder.name)
            if process_id != os.getpid() and mark.encode() in environment and (command := _command(process_id)):
                tests = [each for each in environment.split(b"\0") if each.startswith(b"PYTEST_CURRENT_TEST=")]
                found[process_id] = f"{command}{b''.join(tests).decode(errors='replace')}".strip()
    return found
