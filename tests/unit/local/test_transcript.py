"""The recorded output of functions in virtual time."""

import contextlib
import logging
import sys

import pytest

from tarry.tools.local.runs.printing import Transcript, logging_to
from tarry.tools.local.show.timeline import LogLine


def test_lines_are_recorded_with_their_times() -> None:
    times = iter([1.0, 2.0, 3.0, 4.0])
    transcript = Transcript(lambda: next(times))
    with transcript.recording():
        print("one")
        sys.stderr.write("two\nthr")
        print("ee", end="")
    assert [line.text for line in transcript.lines] == ["one", "two", "three"]
    assert transcript.lines[0] == LogLine(1.0, "", "one")


def test_lines_of_a_logger_are_recorded() -> None:
    transcript = Transcript(lambda: 0)
    with transcript.recording():
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": "careful"}))
    assert transcript.lines == [LogLine(0, "", "careful")]


def test_output_of_a_debugger_is_shown_immediately(capsys: pytest.CaptureFixture[str]) -> None:
    transcript = Transcript(lambda: 0)
    with transcript.recording():
        exec("print('(Pdb) ', end='')", {"__name__": "pdb"})
    assert capsys.readouterr().out == "(Pdb) "
    assert transcript.lines == []


def test_a_logger_that_is_made_at_import_writes_to_the_terminal_then_and_to_the_record_during_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    transcript = Transcript(lambda: 0)
    with contextlib.redirect_stdout(transcript):
        handler = logging.StreamHandler(sys.stdout)
        handler.emit(logging.makeLogRecord({"msg": "imported"}))
    with transcript.recording():
        handler.emit(logging.makeLogRecord({"msg": "running"}))
    assert capsys.readouterr() == ("", "imported\n")
    assert transcript.lines == [LogLine(0, "", "running")]


@pytest.mark.parametrize("verbose", [False, True])
def test_the_info_lines_of_awss_sdk_are_not_recorded(verbose: bool) -> None:
    transcript = Transcript(lambda: 0)
    with logging_to(transcript, verbose=verbose), transcript.recording():
        for name in ("botocore.credentials", "app"):
            logging.getLogger(name).handle(logging.makeLogRecord({"name": name, "levelno": 20, "msg": f"from {name}"}))
    assert [line.text.partition(": ")[2] for line in transcript.lines] == ["from app"]
