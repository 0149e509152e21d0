"""The lines of the package that each test runs, recorded by coverage.py: a pytest plugin, and what starts it.

A context of coverage.py is the id of a test. A process that a test starts finds the id in its environment.
"""

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from coverage.numbits import num_in_numbits

import tests.command
import tests.processes
from tests.mutants.private import PACKAGE, files, private_copy, run_tests
from tests.pages import ROOT

TEST, SECONDS = "TARRY_MUTANTS_TEST", "TARRY_MUTANTS_SECONDS"
"""Environment variables: the test that runs, and the file for the seconds of the tests that passed."""
CACHE = ROOT / "build" / "mutants"
LIMIT_SECONDS = 2 * 3600.0
CONFIG = """\
[run]
parallel = true
core = ctrace
data_file = {data}
include = */python/tarry/*
patch = _exit
"""
STARTUP = f"""\
import os, signal, coverage
if (test := os.environ.get("{TEST}")) and (current := coverage.Coverage.current()):
    current.switch_context(test)
    signal.signal(signal.SIGPROF, lambda *_: os._exit(0))
"""
"""The sitecustomize.py of the processes that tests start. Coverage.py saves its data at `os._exit`."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The lines that each test runs, as coverage.py has stored them, and the seconds of the tests that pass."""

    data: Path
    seconds: Mapping[str, float]

    def tests(self, file: str, lines: Iterable[int]) -> set[str]:
        """Return the tests that run one of the lines of a file; its path begins in the folder of the package."""
        return {test for test, numbits in self._of(file) if any(num_in_numbits(line, numbits) for line in lines)}

    @cache  # noqa: B019 there is one recording
    def _of(self, file: str) -> list[tuple[str, bytes]]:
        query = (
            "SELECT context, numbits FROM line_bits JOIN context ON context.id = context_id"
            " JOIN file ON file.id = file_id WHERE path LIKE '%/python/tarry/' || ?"
        )
        with closing(sqlite3.connect(self.data)) as database:
            return [(test, numbits) for test, numbits in database.execute(query, (file,)) if test in self.seconds]


def recording() -> Recording:
    """Return the recording for the package and tests as they are now, and make it if there is none: minutes."""
    digest = hashlib.sha256()
    for each in files():
        if each.is_relative_to(PACKAGE) or (each.is_relative_to("tests") and "mutants" not in str(each)):
            digest.update(f"{each}\0".encode() + (ROOT / each).read_bytes())
    data, seconds, part = (CACHE / f"{digest.hexdigest()[:12]}.{kind}" for kind in ("coverage", "json", "part"))
    if not seconds.exists():
        print("Recording the lines that each test runs: minutes. After Ctrl-C, the next call continues.", flush=True)
        with private_copy() as root:
            _record(root, data, part)
        results = json.loads(part.read_text())
        if failed := [test for test, result in results.items() if result is None]:
            print(f"{len(failed)} tests fail without a mutant, and are not used:", *failed, sep="\n  ", flush=True)
        seconds.write_text(json.dumps({test: result for test, result in results.items() if result is not None}))
    return Recording(data, json.loads(seconds.read_text()))


def _record(root: Path, data: Path, part: Path) -> None:
    """Run the tests that ``part`` does not have with coverage.py; then again those that fail with it.

    Some do: they count calls, or set a profile function.
    """
    folder = CACHE / "recording"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config").write_text(CONFIG.format(data=folder / "data"))
    (folder / "sitecustomize.py").write_text(STARTUP)
    plugin, variables = ["-p", "tests.mutants.recorder"], {SECONDS: str(part)}
    measured = {"COVERAGE_PROCESS_START": str(folder / "config"), "PYTHONPATH": str(folder)}
    try:
        output = run_tests(root, ["-n", "auto", *plugin], LIMIT_SECONDS, variables | measured)
        (folder / "output").write_text(output or "")
    finally:
        coverage = Coverage(data_file=str(folder / "data"), config_file=False)
        coverage.combine([str(folder), *([str(data)] if data.exists() else [])])
        coverage.save()
        shutil.move(folder / "data", data)
    if not part.exists():
        raise SystemExit(output)
    if failed := [test for test, result in json.loads(part.read_text()).items() if result is None]:
        run_tests(root, [*failed, *plugin], LIMIT_SECONDS, variables)


# The plugin.

_running: dict[str, float | None] = {}
_results: dict[str, float | None] = {}
_killed = tests.processes.end


def _earlier() -> dict[str, float | None]:
    part = Path(os.environ[SECONDS])
    results: dict[str, float | None] = json.loads(part.read_text()) if part.exists() else {}
    return results


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    passed = {test for test, result in _earlier().items() if result is not None}
    items[:] = [item for item in items if item.nodeid not in passed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    os.environ[TEST] = item.nodeid
    if current := Coverage.current():
        current.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        del os.environ[TEST]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    before = _running.get(report.nodeid, 0.0)
    _running[report.nodeid] = None if before is None or report.failed else before + report.duration
    if report.when == "teardown":
        _results[report.nodeid] = _running.pop(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        Path(os.environ[SECONDS]).write_text(json.dumps(_earlier() | _results))


def pytest_configure() -> None:
    """Stand in for two functions of the tests; `tests.command` is imported already."""
    tests.command._run = _run
    for module in (tests.command, tests.processes):
        vars(module)["end"] = _end


def _run(arguments: list[str], streams: list[int], folder: str, environment: dict[str, str]) -> None:
    """Stand in for `tests.command._run`, in a forked process: it began as a process of another test."""
    if current := Coverage.current():
        current.switch_context(environment.get(TEST, ""))
    tests.command._run(arguments, streams, folder, environment)


def _end(process: Any) -> None:
    """Stand in for `tests.processes.end`: let the process save its data, and kill it then."""
    if process.poll() is None:
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGPROF)
            process.wait(5)
    _killed(process)
