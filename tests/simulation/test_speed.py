"""The cost of a message in the sandbox (`make bench` measures the time)."""

import gc
import logging
import sys
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from benchmarks.deliveries import fails_once, measure
from tarry.testing import Sandbox

MESSAGES = 400
MAX_CALLS_PER_MESSAGE = 455
"""A message takes 440 calls of Python functions on Python 3.11; later versions inline some."""
MAX_THREADS = 20
MAX_BYTES_PER_MESSAGE, MAX_CHECKED_BYTES_PER_MESSAGE = 2_400, 3_400
"""On Python 3.11 a message takes 2,120 bytes, and 3,150 once the rules are checked."""


@pytest.mark.usefixtures("without_loggers", "without_tracers")
def test_a_message_costs_few_calls_and_a_failure_no_thread() -> None:
    """One message in ten fails once. The calls of Python functions are counted, which no busy machine changes."""
    measure(MESSAGES, fails_once)  # the first run imports modules, and compiles the checks of requests
    with _counted() as counts:
        measure(MESSAGES, fails_once)
    assert counts["calls"] / MESSAGES < MAX_CALLS_PER_MESSAGE
    assert counts["threads"] < MAX_THREADS


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """Count the calls of Python functions, and the threads."""
    counts = Counter[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            counts["calls"] += 1
            counts["threads"] += frame.f_code is threading.Thread.run.__code__

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def test_only_the_history_remembers_finished_messages() -> None:
    """Without a history, memory does not grow with the number of finished messages: no object is left of them."""
    before, after = _objects(100, keep_history=True), _objects(300, keep_history=True)
    growing = {name for name in after if after[name] != before[name]}
    assert growing == {"HistoryEvent", "OneEntry", "RunMessage", "RunVerdict"}
    assert _objects(100, keep_history=False) == _objects(300, keep_history=False)


def _objects(messages: int, *, keep_history: bool) -> Counter[str]:
    """Return the numbers of tarry's objects after a run, by type."""
    with Sandbox(keep_history=keep_history) as sandbox:
        sandbox.queue("work")
        sandbox.connect(fails_once, "work")
        for number in range(messages):
            sandbox.send("work", str(number))
        sandbox.run(check=False)
        gc.collect()
        kinds = [type(each) for each in gc.get_objects()]
        return Counter(each.__qualname__ for each in kinds if each.__module__.startswith("tarry."))


@pytest.mark.usefixtures("without_loggers", "without_tracers")
def test_a_message_takes_two_kilobytes_of_history_and_one_of_facts_for_checkers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The difference of two runs: what is made once, or kept of the last invocations, does not count."""
    monkeypatch.setattr(logging.getLogger("tarry"), "propagate", False)  # pytest keeps the lines of a test
    _taken(100)  # the first run imports modules
    few, many = _taken(200), _taken(700)
    of_run, of_check = ((later - earlier) / 500 for earlier, later in zip(few, many, strict=True))
    assert of_run < MAX_BYTES_PER_MESSAGE
    assert of_check < MAX_CHECKED_BYTES_PER_MESSAGE


def _taken(messages: int) -> tuple[int, int]:
    """Return the memory that a run takes at its end, and after its check."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with Sandbox() as sandbox:
            sandbox.queue("work")
            sandbox.connect(fails_once, "work")
            for number in range(messages):
                sandbox.send("work", str(number))
            report = sandbox.run(check=False)
            of_run, _ = tracemalloc.get_traced_memory()
            report.check()
            of_check, _ = tracemalloc.get_traced_memory()
        return of_run - before, of_check - before
    finally:
        tracemalloc.stop()


def test_garbage_is_collected_rarely_while_a_sandbox_is_in_use() -> None:
    before = gc.get_threshold()
    with Sandbox():
        assert gc.get_threshold() == (2_000_000, *before[1:])
        with Sandbox():
            assert gc.get_threshold()[0] == 2_000_000
    assert gc.get_threshold() == before


@pytest.mark.parametrize("own", [(0, 10, 10), (3_000_000, 5, 5)])
def test_the_thresholds_of_a_test_stay(own: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(*own)
        with Sandbox():
            assert gc.get_threshold() == own
        gc.set_threshold(*before)
        with Sandbox():
            gc.set_threshold(*own)
        assert gc.get_threshold() == own
    finally:
        gc.set_threshold(*before)
