"""Loading boto3 while a small function initializes."""

import os
import subprocess
import sys

import pytest

from tarry.run.loading import is_better_now, used_share

MB_128, MB_442, MB_512 = 128 / 1_769, 442 / 1_769, 512 / 1_769


@pytest.mark.parametrize(
    ("asked", "share", "used", "is_better"),
    [
        (None, MB_128, 0.9, True),
        (None, MB_442, 0.6, True),
        (None, MB_512, 0.9, False),
        (None, 1.0, 0.9, False),
        ("init", 1.0, 0.9, True),
        ("later", MB_128, 0.9, False),
        ("yes", MB_128, 0.9, True),
    ],
)
def test_a_small_function_loads_boto3_while_it_initializes(
    asked: str | None, share: float, used: float, is_better: bool
) -> None:  # SPEC C8
    assert is_better_now(asked, share, used) is is_better


@pytest.mark.parametrize(("share", "used"), [(MB_128, 0.08), (MB_128, 0.14), (MB_442, 0.25)])
def test_a_process_that_starts_within_an_invocation_does_not_load_it(share: float, used: float) -> None:  # SPEC I2
    """As after a crash: it has only its share of a core, and loading could take longer than the timeout each time."""
    assert not is_better_now(None, share, used)


def test_the_share_that_a_process_has_used_is_at_most_that_of_its_threads() -> None:
    assert 0 <= used_share() <= (os.cpu_count() or 1)


FUNCTION = """
import sys
from tarry import consumer, world
assert "boto3" not in sys.modules
handler = consumer(lambda message: None)
assert "boto3" in sys.modules and world.current().is_loaded and world.current().loading_seconds > 0
"""


INITIALIZES = {
    "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
    "AWS_DEFAULT_REGION": "us-east-1",
    "TARRY_LOAD_BOTO3": "init",
}


def test_the_client_is_made_with_the_consumer() -> None:  # SPEC C8
    subprocess.run([sys.executable, "-c", FUNCTION], env={**os.environ, **INITIALIZES}, check=True)


FAILURES = """
import sys
from tarry import DeadLetter, MemoryAttempts, consumer
from tests.records import Context, batch_of
from tests.wire import Queue, Wire

def fails(message):
    raise ValueError

PARTS = ("tarry.decide", "tarry.record", "tarry.run", "tarry.settle", "tarry.sqs")
handlers = [consumer(fails), consumer(fails, on_failure=[DeadLetter()]), consumer(fails, attempts=MemoryAttempts())]
loaded = {*sys.modules}
with Wire(queues={"orders": Queue(dead_letter="orders-dlq")}):
    for handler in handlers:
        handler(batch_of(3, receives=2), Context())
late = [name for name in sys.modules if name not in loaded and name.startswith(PARTS)]
assert not late, late
"""


def test_after_that_no_failure_loads_code_of_the_settlement() -> None:
    """SPEC C8, I2. Messages that are isolated, retried, dead-lettered, and written to an attempt store."""
    subprocess.run([sys.executable, "-c", FAILURES], env={**os.environ, **INITIALIZES}, check=True)


def test_a_client_that_cannot_be_made_does_not_keep_the_function_from_starting() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand", "TARRY_LOAD_BOTO3": "init"}
    without_region = "from tarry import consumer\nconsumer(lambda message: None)"
    subprocess.run([sys.executable, "-c", without_region], env=environment, check=True)
