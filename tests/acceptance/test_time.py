"""Handlers that do not end, under Lambda's own runtime client, for real."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.acceptance.conftest import ROOT
from tests.acceptance.runtime import running
from tests.acceptance.runtime_api import ProcessDied, RuntimeApi
from tests.records import batch_of, failed

TIMEOUT = 4.0

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
    def start(line: str) -> Iterator[RuntimeApi]:
        (tmp_path / "app.py").write_text(f"{LOOPS}\n{line}\n")
        with running(tmp_path, [ROOT / "layers" / "tarry"], lambda_packages, {"AWS_ENDPOINT_URL": aws}) as api:
            yield api

    return start


@pytest.mark.parametrize("function", ["retries", "blocks", "waits"])
def test_the_answer_is_out_before_the_deadline_and_the_process_goes_on(invoke, function: str) -> None:  # type: ignore[no-untyped-def]
    """SPEC I2, I3."""
    with invoke(f"handler = consumer(backoff=Fixed(60))({function})") as api:
        began = time.monotonic()
        answer = api.invoke(batch_of(3), TIMEOUT)
        assert time.monotonic() - began < TIMEOUT
        assert failed(answer) == ["m1", "m2"]
        assert failed(api.invoke(batch_of(1), TIMEOUT)) == []


def test_a_process_with_handlers_that_hang_ends_when_all_is_settled(invoke) -> None:  # type: ignore[no-untyped-def]
    """SPEC I3. Lambda takes that for a function error, and starts a new process."""
    with invoke("handler = consumer(concurrency=2, timeout=0.2)(hangs)") as api:
        assert failed(api.invoke(batch_of(3), 10)) == ["m1"]
        with pytest.raises(ProcessDied, match="exit code 1"):
            api.invoke(batch_of(3), 10)
