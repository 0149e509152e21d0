"""What tarry and the handlers log in a run in virtual time, in this process."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tarry.local.plan import Note


class _Lines(logging.Handler):
    """Shows of tarry's log the warnings that name no message: what becomes of messages is told otherwise."""

    def __init__(self, note: Note, *, verbose: bool) -> None:
        super().__init__()
        self._note = note
        self._verbose = verbose
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        is_transition = bool(fields.get("state") and fields.get("delivery_id"))
        if self._verbose or (not is_transition and record.levelno >= logging.WARNING):
            self._note(self.format(record))


@contextmanager
def listening(note: Note, *, verbose: bool) -> Iterator[None]:
    """Hear the logs for as long as the context lasts. The root logger writes to stderr, as Lambda's does."""
    told = _Lines(note, verbose=verbose)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    tarry, root = logging.getLogger("tarry"), logging.getLogger()
    before = tarry.level, tarry.propagate
    tarry.addHandler(told)
    tarry.setLevel(logging.INFO)
    tarry.propagate = False
    root.addHandler(lines)
    try:
        yield
    finally:
        root.removeHandler(lines)
        tarry.removeHandler(told)
        tarry.setLevel(before[0])
        tarry.propagate = before[1]
