"""Lines from a pipe, as they are written."""

import asyncio
import os
from collections.abc import Callable

MAX_LINE_BYTES = 256 * 1024
"""Longer lines come in parts, as in CloudWatch."""
PIPE_BYTES = 64 * 1024


class Lines:
    """Tells each line that is written to the pipe whose reading end is ``pipe``. Made on the running loop."""

    def __init__(self, pipe: int, tell: Callable[[str], None]) -> None:
        self._pipe = pipe
        self._tell = tell
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe, False)
        self._loop.add_reader(pipe, self._read)

    def flush(self) -> None:
        """Tell what has been written until now, also a last line without an end."""
        room = PIPE_BYTES  # what is written meanwhile has time
        while room > 0 and (got := self._read()):
            room -= got
        if self._rest:
            self._tell_of(self._rest)
            self._rest = b""

    def close(self) -> None:
        """Tell what is left, and read no more."""
        self.flush()
        self._stop()
        os.close(self._pipe)

    def _read(self) -> int:
        try:
            got = os.read(self._pipe, PIPE_BYTES)
        except BlockingIOError:
            return 0
        if not got:
            self._stop()
            return 0
        *lines, self._rest = (self._rest + got).split(b"\n")
        for line in lines:
            self._tell_of(line)
        while len(self._rest) >= MAX_LINE_BYTES:
            self._tell_of(self._rest[:MAX_LINE_BYTES])
            self._rest = self._rest[MAX_LINE_BYTES:]
        return len(got)

    def _tell_of(self, line: bytes) -> None:
        self._tell(line.decode(errors="replace"))

    def _stop(self) -> None:
        self._loop.remove_reader(self._pipe)
