"""Python's garbage collector while a sandbox is in use."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OBJECTS_PER_COLLECTION = 2_000_000
"""Some 200 MB, if all of them are garbage. Python's own number is 700. The history of 20,000 messages has fewer."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Let the garbage collector start less often until the context ends.

    A sandbox keeps its whole history, so each collection looks through more objects that all stay alive: a fifth of the
    time of a run. Cycles are still collected, and `gc.collect()` works as always. A collector that is off stays off.
    """
    before = gc.get_threshold()
    rare = (max(before[0], OBJECTS_PER_COLLECTION) if before[0] else 0, *before[1:])
    gc.set_threshold(*rare)
    try:
        yield
    finally:
        if gc.get_threshold() == rare:  # the test has not set its own
            gc.set_threshold(*before)
