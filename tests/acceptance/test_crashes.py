"""Messages that crash their process, and handlers that do not end, under the runtime client of Lambda.

`tests/integration/test_crashes.py` and `test_timeouts.py` test many more cases in virtual time.
"""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.acceptance.redelivery import Redelivery
from tests.acceptance.runtime import ROOT, Start, running
from tests.acceptance.runtime_api import FakeRuntimeApi, ProcessEnded
from tests.records import batch_of, failed

RECEIVES = 4
HANGS_SECONDS = 8.0

APP = """
import asyncio, contextlib, os, resource, signal, time
from tarry import Fixed, consumer

def exits():
    os._exit(3)

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

def retries(message):
    while message.body == "1":
        try:
            time.sleep(60)
        except Exception:
            pass

async def blocks(message):
    if message.body == "1":
        time.sleep(60)

async def waits(message):
    while message.body == "1":
        try:
            await asyncio.sleep(60)
        except Exception:
            pass

def hangs(message):
    while message.body == "1":
        with contextlib.suppress(BaseException):
            time.sleep(60)
"""
Function = Callable[[str], Start]


@pytest.fixture
def function(tmp_path: Path, lambda_packages: Path) -> Function:
    """Return a function that makes a function whose handler is made by a line of code."""

    def make(line: str) -> Start:
        folder = Path(mkdtemp(dir=tmp_path))
        (folder / "app.py").write_text(f"{APP}\n{line}\n")
        return lambda **environment: running(folder, [ROOT / "layers" / "tarry"], lambda_packages, environment)

    return make


def poisoned(crash: str) -> str:
    return f"@consumer\ndef handler(message):\n    if message.body == 'poison':\n        {crash}"


@pytest.mark.parametrize(
    ("crash", "timeout", "exit_codes", "place", "is_fifo"),
    [
        # It suppresses every interruption; otherwise only its message would fail, before the timeout.
        pytest.param("loops()", 2, [None] * 4, 9, False, id="loops until the timeout"),
        pytest.param("(exits, is_killed)[message.receive_count % 2]()", 60, [-9, 3] * 2, 4, True, id="ends"),
    ],
)
def test_a_message_whose_handler_loops_or_ends_its_process_is_dead_lettered_alone(
    crash: str, timeout: float, exit_codes: list[int | None], place: int, is_fifo: bool, function: Function
) -> None:  # SPEC G4, I3
    others = [f"m{number}" for number in range(9)]
    start = function(f"import boto3\n{poisoned(crash)}")
    with Redelivery(start, timeout=timeout, receives=RECEIVES, is_fifo=is_fifo) as queue:
        queue.send(*others[:place], "poison", *others[place:])
        queue.play()
        assert queue.dead_letters == ["poison"], queue.crashes
    times = Counter(body for batch in queue.crashes for body in batch)
    assert times.pop("poison") == RECEIVES
    assert max(times.values()) < RECEIVES, queue.crashes
    assert queue.crashes[-1] == ["poison"]
    assert set(queue.done) | set(times) == set(others)
    assert queue.exits == exit_codes


def test_a_memory_error_fails_only_its_message(function: Function) -> None:
    """SPEC A2, A5. A `MemoryError` holds the frames of the handler, and with them the memory."""
    bodies = ["poison", *(f"m{number}" for number in range(9))]
    with Redelivery(function(poisoned("takes_all_memory_it_can_get()")), timeout=60, receives=2) as queue:
        queue.send(*bodies)
        queue.play()
    assert (queue.crashes, sorted(queue.done)) == ([], sorted(bodies))


def test_the_response_comes_before_the_deadline_and_the_process_continues(function: Function, aws: str) -> None:
    """SPEC I2, I3. Three processes in parallel; each runs until shortly before its deadline."""

    def play(handler: str) -> None:
        with started(function(f"handler = consumer(backoff=Fixed(60))({handler})"), aws) as api:
            answer = api.invoke(batch_of(3), HANGS_SECONDS)  # raises TimeoutError after the deadline
            assert failed(answer) == ["m1", "m2"], handler
            assert failed(api.invoke(batch_of(1), HANGS_SECONDS)) == [], handler

    with ThreadPoolExecutor() as threads:
        list(threads.map(play, ["retries", "blocks", "waits"]))


def test_a_process_with_hanging_handlers_ends_after_the_settlement(function: Function, aws: str) -> None:
    """SPEC I3. Lambda treats it as a function error and starts a new process."""
    with started(function("handler = consumer(concurrency=2, timeout=1)(hangs)"), aws) as api:
        assert failed(api.invoke(batch_of(3), 60)) == ["m1"]
        with pytest.raises(ProcessEnded, match="exit code 1"):
            api.invoke(batch_of(3), 60)


def started(start: Start, aws: str) -> AbstractContextManager[FakeRuntimeApi]:
    return start(AWS_ENDPOINT_URL=aws)
