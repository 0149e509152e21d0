"""Messages that crash their process, under the runtime client of Lambda, which is restarted after each crash.

`tests/integration/test_crashes.py` tests many more cases in virtual time.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.redelivery import Redelivery
from tests.acceptance.runtime import ROOT, Start, running

RECEIVES = 6
A_FEW = 4

APP = """
import contextlib, ctypes, os, resource, signal, time
from tarry import consumer

def exits():
    os._exit(3)

def runs_out_of_memory():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    while True:
        block = libc.malloc(ctypes.c_size_t(100_000_000))
        ctypes.memset(block, 1, 1)  # like C code that does not check the result of malloc

def is_killed():  # as Lambda does when memory runs out
    os.kill(os.getpid(), signal.SIGKILL)

def loops():
    while True:
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)  # without a sleep, it would take the CPU from other tests

def takes_all_memory_it_can_get():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    blocks = []
    while True:
        blocks.append(bytearray(1_000_000))
"""


@pytest.fixture
def function(tmp_path: Path, lambda_packages: Path) -> Any:
    """Return a function that makes a function whose handler crashes at the message ``poison``."""

    def make(crash: str, before: str = "") -> Start:
        handler = f"""
@consumer
def handler(message):
    if message.body == "poison":
        {crash}()
"""
        (tmp_path / "app.py").write_text(f"{before}\n{APP}\n{handler}")
        return lambda **environment: running(tmp_path, [ROOT / "layers" / "tarry"], lambda_packages, environment)

    return make


def ten(place: int) -> list[str]:
    return [*(f"m{number}" for number in range(place)), "poison", *(f"m{number}" for number in range(place, 9))]


def assert_only_the_poison_is_dead_lettered(played: Redelivery) -> None:
    assert played.dead_letters == ["poison"], played.crashes
    times = Counter(body for batch in played.crashes for body in batch)
    assert times.pop("poison") == RECEIVES
    assert max(times.values()) <= A_FEW, played.crashes
    assert played.crashes[-1] == ["poison"]
    assert len(set(played.done)) >= 9 - len(times)


@pytest.mark.parametrize("is_fifo", [False, True], ids=["standard", "fifo"])
def test_a_message_whose_handler_exits_is_dead_lettered_alone(function: Any, is_fifo: bool) -> None:  # SPEC G4
    with Redelivery(function("exits"), timeout=60, receives=RECEIVES, is_fifo=is_fifo) as queue:
        queue.send(*ten(4))
        assert_only_the_poison_is_dead_lettered(queue.play())
    assert queue.exits == [3] * RECEIVES


@pytest.mark.parametrize("crash", ["runs_out_of_memory", "is_killed"])
def test_a_message_whose_process_is_killed_is_dead_lettered_alone(function: Any, crash: str) -> None:  # SPEC G4
    with Redelivery(function(crash), timeout=60, receives=RECEIVES) as queue:
        queue.send(*ten(0))
        assert_only_the_poison_is_dead_lettered(queue.play())
    assert queue.exits == [-9 if crash == "is_killed" else -11] * RECEIVES


def test_a_message_whose_handler_loops_until_the_timeout_is_dead_lettered_alone(function: Any) -> None:  # SPEC G4, I3
    """The handler suppresses every interruption; otherwise only its message would fail, before the timeout."""
    with Redelivery(function("loops", before="import boto3"), timeout=2, receives=RECEIVES) as queue:
        queue.send(*ten(9))
        assert_only_the_poison_is_dead_lettered(queue.play())
    assert queue.exits == [None] * RECEIVES


def test_a_memory_error_fails_only_its_message(function: Any) -> None:
    """SPEC A2, A5. A `MemoryError` holds the frames of the handler, and with them the memory."""
    with Redelivery(function("takes_all_memory_it_can_get"), timeout=60, receives=2) as queue:
        queue.send("poison", *(f"m{number}" for number in range(9)))
        queue.play()
    assert queue.crashes == []
    assert sorted(queue.done) == sorted(["poison", *(f"m{number}" for number in range(9))])
