"""What functions print in virtual time."""

import logging
import sys

import pytest

from tarry.local.runs.virtual import OutputLine, Transcript


def test_lines_are_kept_with_their_times() -> None:
    times = iter([1.0, 2.0, 3.0, 4.0])
    transcript = Transcript(lambda: next(times))
    with transcript.recording():
        print("one")
        sys.stderr.write("two\nthr")
        print("ee", end="")
    assert [said.text for said in transcript.lines] == ["one", "two", "three"]
    assert transcript.lines[0] == OutputLine(1.0, "", "one")


def test_what_a_logger_writes_is_kept_too() -> None:
    transcript = Transcript(lambda: 0)
    with transcript.recording():
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": "careful"}))
    assert transcript.lines == [OutputLine(0, "", "careful")]


def test_a_debugger_speaks_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    transcript = Transcript(lambda: 0)
    with transcript.recording():
        exec("print('(Pdb) ', end='')", {"__name__": "pdb"})
    assert capsys.readouterr().out == "(Pdb) "
    assert transcript.lines == []
