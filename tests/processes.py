"""Processes that end with the test that starts them, however the test ends."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.command import Command

PATIENCE_SECONDS = 120.0
"""The limit that ends a hanging process. No test needs this long, even on a busy machine."""


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes and reads text; kill its whole process group at the end of the block.

    ``options`` are those of `subprocess.Popen`.
    """
    process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        end(process)


def end(process: "subprocess.Popen[Any] | Command") -> None:
    """Kill the process group that a process leads, and wait for the end of the process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):  # text that was not written yet is lost
                stream.close()
