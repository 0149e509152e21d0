"""What tarry and the handlers log during a run: what tarry says of messages goes to one place, lines to another."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tarry.local.plan import Note
from tarry.outcome import State
from tarry.testing import Transition
from tarry.testing.story import because

Hear = Callable[[Transition], None]


class _Lines(logging.Handler):
    """Reads the structured events of the logger ``tarry``, never their text; shows warnings that name no message."""

    def __init__(self, hear: Hear, note: Note, *, verbose: bool) -> None:
        super().__init__()
        self._hear = hear
        self._note = note
        self._verbose = verbose
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        step = _transition(record)
        if step is not None:
            self._hear(step)
        if self._verbose or (step is None and record.levelno >= logging.WARNING):
            self._note(self.format(record))


def _transition(record: logging.LogRecord) -> Transition | None:
    fields = vars(record)
    if not (fields.get("state") and fields.get("delivery_id")):
        return None
    return Transition(
        at=time.time(),
        state=State(fields["state"]),
        delivery_id=str(fields["delivery_id"]),
        queue=str(fields.get("queue", "")),
        attempt=fields.get("attempt"),
        delay=fields.get("delay"),
        why=because(fields),
        sent_on="sent_to" in fields,
    )


@contextmanager
def listening(hear: Hear, note: Note, *, verbose: bool) -> Iterator[None]:
    """Hear the logs for as long as the context lasts. The root logger writes to stderr, as Lambda's does."""
    told = _Lines(hear, note, verbose=verbose)
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
