"""What tarry and the handlers log during a run: transitions go to the board, the rest is shown as lines."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tarry.local.plan import Note
from tarry.local.story import Board, Step


class _Transitions(logging.Handler):
    """Reads the structured events of the logger ``tarry``; never their text."""

    def __init__(self, board: Board, note: Note, *, verbose: bool) -> None:
        super().__init__()
        self._board = board
        self._note = note
        self._verbose = verbose
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        fields = vars(record)
        if fields.get("state") and fields.get("delivery_id"):
            step = Step(
                state=str(fields["state"]),
                attempt=fields.get("attempt"),
                delay_seconds=fields.get("delay"),
                reason=str(fields.get("not_sent") or fields.get("reason") or ""),
                error=str(fields.get("error") or ""),
                as_copy="sent_to" in fields,
            )
            self._board.told(str(fields["delivery_id"]), step, time.time())
            if not self._verbose:
                return
        elif record.levelno < logging.WARNING:
            return
        self._note(self.format(record))


@contextmanager
def listening(board: Board, note: Note, *, verbose: bool) -> Iterator[None]:
    """Hear the logs for as long as the context lasts. The root logger writes to stderr, as Lambda's does."""
    transitions = _Transitions(board, note, verbose=verbose)
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    tarry, root = logging.getLogger("tarry"), logging.getLogger()
    before = tarry.level, tarry.propagate
    tarry.addHandler(transitions)
    tarry.setLevel(logging.INFO)
    tarry.propagate = False
    root.addHandler(lines)
    try:
        yield
    finally:
        root.removeHandler(lines)
        tarry.removeHandler(transitions)
        tarry.setLevel(before[0])
        tarry.propagate = before[1]
