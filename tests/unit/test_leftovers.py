"""The check that no test leaves a process behind, run on test runs of its own."""

import os
import sys
from pathlib import Path

import pytest

from tests import leftovers
from tests.leftovers import MARK, Leftovers

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")

LEAVES_A_PROCESS = """
    import subprocess, sys

    def test_it():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open("started", "w") as file:
            file.write(str(process.pid))
        assert {passes}
"""


def run(pytester: pytest.Pytester, test: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", plugins=[Leftovers()])


@pytest.mark.parametrize("passes", [True, False])
def test_a_process_that_outlives_its_test_is_ended_and_fails_the_run(
    passes: bool, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE_SECONDS", 0.1)
    result = run(pytester, LEAVES_A_PROCESS.format(passes=passes))
    process_id = int(Path("started").read_text())
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*processes left behind*", f"{process_id} {sys.executable} -c import time*"])
    assert os.waitpid(process_id, 0)[1] == 9


def test_a_process_that_ends_soon_after_its_test_is_not_reported(pytester: pytest.Pytester) -> None:
    before = os.environ.get(MARK)
    result = run(pytester, LEAVES_A_PROCESS.format(passes=True).replace("600", "0.2"))
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*left behind*")
    assert os.environ.get(MARK) == before
    os.waitpid(int(Path("started").read_text()), 0)
