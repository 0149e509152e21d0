"""Processes that end with the test that starts them, however the test ends."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE_SECONDS = 120.0
"""How long a busy machine may take. This limit only ends what hangs."""


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes and reads text; kill it and its whole process group at the end of the block.

    ``options`` are those of `subprocess.Popen`.
    """
    process = subprocess.Popen(command, text=True, start_new_session=True, **options)
    try:
        yield process
    finally:
        end(process)


def end(process: "subprocess.Popen[Any]") -> None:
    """Kill a process that leads a process group, with the whole group, and wait for its end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with suppress(OSError):  # what was not written yet is lost
                stream.close()
