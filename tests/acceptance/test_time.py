"""Handlers that do not end, under the runtime client of Lambda."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.acceptance.runtime import ROOT, running
from tests.acceptance.runtime_api import FakeRuntimeApi, ProcessEnded
from tests.records import batch_of, failed

TIMEOUT = 8.0

LOOPS = """
import asyncio, contextlib, time
from tarry import Fixed, consumer

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


@pytest.fixture
def invoke(tmp_path: Path, lambda_packages: Path, aws: str):  # type: ignore[no-untyped-def]
    @contextmanager
    def start(line: str) -> Iterator[FakeRuntimeApi]:
        folder = Path(mkdtemp(dir=tmp_path))
        (folder / "app.py").write_text(f"{LOOPS}\n{line}\n")
        with running(folder, [ROOT / "layers" / "tarry"], lambda_packages, {"AWS_ENDPOINT_URL": aws}) as api:
            yield api

    return start


def test_the_response_comes_before_the_deadline_and_the_process_continues(invoke) -> None:  # type: ignore[no-untyped-def]
    """SPEC I2, I3. Three processes in parallel; each runs until shortly before its deadline."""

    def play(function: str) -> None:
        with invoke(f"handler = consumer(backoff=Fixed(60))({function})") as api:
            answer = api.invoke(batch_of(3), TIMEOUT)  # raises TimeoutError after the deadline
            assert failed(answer) == ["m1", "m2"], function
            assert failed(api.invoke(batch_of(1), TIMEOUT)) == [], function

    with ThreadPoolExecutor() as threads:
        list(threads.map(play, ["retries", "blocks", "waits"]))


def test_a_process_with_hanging_handlers_ends_after_the_settlement(invoke) -> None:  # type: ignore[no-untyped-def]
    """SPEC I3. Lambda treats it as a function error and starts a new process."""
    with invoke("handler = consumer(concurrency=2, timeout=1)(hangs)") as api:
        assert failed(api.invoke(batch_of(3), 60)) == ["m1"]
        with pytest.raises(ProcessEnded, match="exit code 1"):
            api.invoke(batch_of(3), 60)
