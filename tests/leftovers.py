"""A check that no test leaves a process behind: otherwise the run fails, lists the processes, and ends them.

Every process that a test run starts inherits a mark in its environment, which identifies it in `/proc`.
Where there is no `/proc`, nothing is checked.
"""

import os
import signal
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

MARK = "TARRY_TEST_RUN"
PATIENCE_SECONDS = 30.0
"""How long a process that is ending may take on a busy machine."""
ENDS_WITH_ITS_PARENT = "from multiprocessing.resource_tracker import main"
"""The command of the resource tracker, a helper process that `multiprocessing` starts."""


class Leftovers:
    """A pytest plugin for the process that starts the run; it also sees the processes of pytest-xdist's workers."""

    def __init__(self) -> None:
        self._before = os.environ.get(MARK)
        self._mark = uuid.uuid4().hex
        os.environ[MARK] = self._mark
        self._found: dict[int, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while (found := marked(self._mark)) and time.monotonic() < ends_at:
            time.sleep(0.05)
        self._found = found
        for process_id in found:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        if found:
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


def marked(mark: str) -> dict[int, str]:
    """Return the commands of the other running processes whose environment contains ``mark``, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(folder.name) != os.getpid() and mark.encode() in (folder / "environ").read_bytes():
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                # A process that has ended and was not waited for has no command.
                if command and ENDS_WITH_ITS_PARENT not in command:
                    found[int(folder.name)] = command
    return found
