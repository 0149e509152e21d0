"""The checks that no test leaves anything behind, run on test runs of their own."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from tests import leftovers
from tests.leftovers import MARK, Leftovers, LeftoversOfTests

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

LEAVES_A_PROCESS = """
    import subprocess, sys

    def test_it():
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE
        )
        process.stdout.readline()  # before that, it may have no environment yet
        with open("started", "w") as file:
            file.write(str(process.pid))
        assert {passes}
"""


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", plugins=[Leftovers()])


@pytest.mark.parametrize(("passes", "seconds"), [(True, "600"), (False, "600"), (True, "0.2")])
def test_a_process_that_outlives_its_test_is_ended_and_fails_the_run_unless_it_ends_soon(
    passes: bool, seconds: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, is_left = os.environ.get(MARK), seconds == "600"
    if is_left:
        monkeypatch.setattr(leftovers, "PATIENCE_SECONDS", 0.1)
    result = run(pytester, LEAVES_A_PROCESS.format(passes=passes).replace("600", seconds))
    process_id = int(Path("started").read_text())
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    assert os.environ.get(MARK) == before
    assert os.waitpid(process_id, 0)[1] == (9 if is_left else 0)
    if is_left:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["*processes left behind*", f"{process_id} {sys.executable} -c import time*"])
    else:
        assert result.ret == pytest.ExitCode.OK
        result.stdout.no_fnmatch_line("*left behind*")


LEFT = {
    "the thread Thread-": "threading.Thread(target=ended.wait, daemon=True).start()",
    "the process ": "Path('pid').write_text(str(subprocess.Popen(['sleep', '600']).pid))",
    "the temporary file ": "tempfile.mkstemp()",
    "another time.monotonic": "time.monotonic = lambda: 0.0",
    "another handler of SIGALRM, or an alarm": "signal.setitimer(signal.ITIMER_REAL, 600)",
    "the working directory /": "os.chdir('/')",
    "the environment variable LEFT = 1": "os.environ['LEFT'] = '1'",
}


@pytest.mark.parametrize("found", [*LEFT, "all of it by a shared fixture"])
def test_what_a_test_leaves_behind_fails_it_by_name_and_what_a_shared_fixture_leaves_does_not(
    found: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_test = found in LEFT
    monkeypatch.setattr(leftovers, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr(tempfile, "tempdir", str(pytester.mkdir("temporary")))
    monkeypatch.delenv("LEFT", raising=False)
    pytester.makepyfile(f"""
        import os, signal, subprocess, tempfile, threading, time
        from pathlib import Path
        import pytest

        ended = threading.Event()

        def leave():
            {LEFT[found] if by_test else "; ".join(LEFT.values())}

        @pytest.fixture(scope="module")
        def shared():
            folder, clock = os.getcwd(), time.monotonic
            if not {by_test}:
                leave()
            yield
            ended.set()
            os.chdir(folder)
            time.monotonic = clock
            os.environ.pop("LEFT", None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if Path("pid").exists():
                with __import__("contextlib").suppress(ProcessLookupError):
                    os.kill(int(Path("pid").read_text()), signal.SIGKILL)

        def test_first(shared):
            if {by_test}:
                leave()

        def test_second(shared):
            pass
    """)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", plugins=[LeftoversOfTests()])
    result.assert_outcomes(passed=2, errors=int(by_test))
    if by_test:
        result.stdout.fnmatch_lines([f"*::test_first leaves behind: {found}*"])
