"""The world: what a process keeps, loading boto3 while a small function initializes, and which handlers are plain."""

import asyncio
import io
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tarry import Batch, Message, consumer, world
from tarry.run.handlers import is_plain
from tarry.run.loading import is_better_now, used_share
from tarry.world import WHOLE_CORE, WallClock, World, current, use
from tests.records import Context, batch_of


def test_a_world_after_a_cold_start_keeps_its_settings_and_none_of_its_cached_values() -> None:
    clock, random = WallClock(), Random(1)
    world = World(clock, random, client_factory=object)
    kept = world.keep(lambda here: object())
    assert world.first_time("warned")

    fresh = world.afresh()
    assert (fresh.clock, fresh.random, fresh.client_factory) == (clock, random, object)
    assert fresh.keep(lambda here: "new") == "new" != kept
    assert fresh.first_time("warned")
    assert not world.first_time("warned")


def test_making_one_object_of_a_world_does_not_delay_another() -> None:
    """The SQS client takes long to make, in a thread; the main thread must not wait for it."""
    world, made, may_end = World(), threading.Event(), threading.Event()

    def slow(_: World) -> str:
        made.set()
        return "slow" if may_end.wait(60) else ""

    thread = threading.Thread(target=world.keep, args=(slow,))
    thread.start()
    made.wait(60)
    assert world.keep(fast := lambda _: "fast") == world.keep(fast) == "fast"
    assert (world.is_making(slow), world.is_making(print)) == (True, False)
    may_end.set()
    thread.join()
    assert world.keep(slow) == "slow"


def test_a_world_may_run_another_consumer_instead_of_the_one_that_was_called() -> None:
    """So a simulation sees the runs of a consumer that a decorator wraps."""
    called, ran = list[Any](), list[str]()
    handler, watched = (consumer(lambda _, name=name: ran.append(name)) for name in ("handler", "watched"))

    def watch(one: Any) -> Any:
        called.append(one)
        return watched

    with use(World(watch=watch)):
        assert handler(batch_of(2), Context()) == {"batchItemFailures": []}
    assert (called, ran) == ([handler], ["watched", "watched"])


def test_the_world_of_a_block_is_the_current_one_until_its_end() -> None:
    before, world = current(), World()
    with use(world) as used:
        assert used is current() is world
    assert current() is before


def test_a_new_id_is_a_uuid_drawn_from_the_random_source_that_was_given() -> None:
    for here in (World(), World(random=Random(1))):
        first, second = here.new_id(), here.new_id()
        assert [str(UUID(each)) for each in (first, second)] == [first, second]
        assert first != second
    assert World(random=Random(1)).new_id() == str(UUID(bytes=Random(1).randbytes(16)))


def test_the_wall_clock_suspends_a_task() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(WallClock().asleep(60), 0.001))


# the share of a core, and boto3

MB_128, MB_442, MB_512 = 128 / 1_769, 442 / 1_769, 512 / 1_769


@pytest.mark.parametrize(
    ("memory_mb", "whole", "share"),
    [
        ("1769", {}, 1),
        ("3008", {}, 1),
        ("128", {}, 128 / 1_769),
        ("128", {WHOLE_CORE: "1"}, 1),
        (None, {}, 512 / 1_769),
    ],
)
def test_a_function_has_a_whole_core_with_1769_mb_and_less_of_one_with_less(
    memory_mb: str | None, whole: dict[str, str], share: float, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC I2
    for name, value in ({"AWS_LAMBDA_FUNCTION_MEMORY_SIZE": memory_mb, WHOLE_CORE: None} | whole).items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    assert runpy.run_path(world.__file__)["CORE_SHARE"] == share


def test_boto3_takes_six_tenths_of_a_second_to_load_and_a_client_a_quarter_on_a_whole_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # SPEC I2
    monkeypatch.setattr(world, "CORE_SHARE", 0.5)
    monkeypatch.setattr(world, "modules", {})
    assert world.seconds_to_load() == 1.2
    monkeypatch.setattr(world, "modules", {"botocore.session": None})
    assert world.seconds_to_load() == 0.5
    client, made = World(client_factory=object), World()
    made.loading_seconds = 0.0
    assert [each.is_loaded for each in (World(), client, made)] == [False, True, True]


@pytest.mark.parametrize(
    ("asked", "share", "used", "is_better"),
    [
        (None, MB_128, 0.9, True),
        (None, MB_442, 0.6, True),
        (None, MB_128, 2 * MB_128, True),
        (None, 511 / 1_769, 0.55, True),  # half of a core is enough
        (None, 511 / 1_769, 0.9, True),
        (None, MB_512, 0.9, False),
        (None, 1.0, 0.9, False),
        ("init", 1.0, 0.9, True),
        ("later", MB_128, 0.9, False),
        ("yes", MB_128, 0.9, True),
        # A process that starts within an invocation, as after a crash, has only its share of a core, and loading could
        # take longer than the timeout each time.
        *((None, MB_128, used, False) for used in (0.08, 2 * MB_128 - 0.001)),
        (None, MB_442, 0.25, False),
    ],
)
def test_a_small_function_loads_boto3_while_it_initializes(
    asked: str | None, share: float, used: float, is_better: bool
) -> None:  # SPEC C8, I2
    assert is_better_now(asked, share, used) is is_better


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("platform", "started_at", "share"),
    [("linux", "20", 0.4), ("linux", "29.5", 8), ("linux", "30", 0), ("linux", "later", 0), ("darwin", "20", 0)],
)
def test_the_share_that_a_process_has_used_is_its_cpu_time_by_its_age_and_0_if_unknown(
    platform: str, started_at: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty seconds after the boot. Linux counts the start of a process in ticks since then, in the 22nd field."""
    assert 0 < used_share() <= (os.cpu_count() or 1)
    ticks = [round(float(started_at) * os.sysconf("SC_CLK_TCK"))] if started_at != "later" else []
    stat = f"7 (a) b) R {' '.join(map(str, [*range(18), *ticks]))} {'1 ' * 30 if ticks else ''}"
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("tarry.run.loading.open", lambda *_, **__: io.StringIO(stat), raising=False)
    monkeypatch.setattr("time.clock_gettime", lambda clock: 30.0 if clock == time.CLOCK_BOOTTIME else 0.0)
    monkeypatch.setattr("time.process_time", lambda: 4.0)
    assert used_share() == share


LOADS_ALL = """
import sys
from tarry import DeadLetter, MemoryAttempts, consumer, world
assert "botocore" not in sys.modules
def fails(message):
    raise ValueError

handlers = [consumer(fails)]
assert "botocore" in sys.modules and "boto3" not in sys.modules
assert world.current().is_loaded and world.current().loading_seconds > 0

from tests.records import Context, batch_of
from tests.wire import Queue, Wire
PARTS = ("tarry.decide", "tarry.record", "tarry.run", "tarry.settle", "tarry.sqs")
handlers += [consumer(fails, on_failure=[DeadLetter()]), consumer(fails, attempts=MemoryAttempts())]
loaded = {*sys.modules}
with Wire(queues={"orders": Queue(dead_letter="orders-dlq")}):
    for handler in handlers:
        handler(batch_of(3, receives=2), Context())
late = [name for name in sys.modules if name not in loaded and name.startswith(PARTS)]
assert not late, late
"""
WITHOUT_A_REGION = "from tarry import consumer\nconsumer(lambda message: None)"


@pytest.mark.parametrize(
    ("program", "region"),
    [
        pytest.param(LOADS_ALL, {"AWS_DEFAULT_REGION": "us-east-1"}, id="no failure loads more, whatever its outcome"),
        pytest.param(WITHOUT_A_REGION, {}, id="a client that cannot be made does not keep it from starting"),
    ],
)
def test_client_and_settlement_are_loaded_with_the_consumer(program: str, region: dict[str, str]) -> None:
    # SPEC C8, I2
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | region
    environment |= {"AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand", "TARRY_LOAD_BOTO3": "init"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


# plain handlers: functions of one argument, which need no closer check when the consumer is made


def without_annotation(message): ...
def with_class(message: Message) -> None: ...
def with_text(message: "Message") -> None: ...
def with_batch(batch: Batch) -> None:
    _local = batch


def with_own_model(message: "Message[dict[str, int]]") -> None: ...
def with_unknown_name(message: "Order") -> None: ...  # noqa: F821
def with_two(message: Message, more: int = 1) -> None: ...
def with_keyword(message: Message, *, more: int = 1) -> None: ...
def with_nothing() -> None: ...
def method_by_hand(self: Message) -> None: ...
def generator(message: Message) -> Iterator[int]:
    yield 1


@wraps(with_class)
def decorated(message: Message) -> None: ...


class LateAnnotations(dict[str, Any]):
    """As of Python 3.14, which evaluates annotations when they are read."""

    def get(self, *_: object) -> Any:
        raise NameError


def with_late_annotations(message): ...


with_late_annotations.__annotations__ = LateAnnotations()
OTHERS = [
    with_batch, with_own_model, with_unknown_name, with_two, with_keyword, with_nothing, method_by_hand,
    with_late_annotations,
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        *((each, True) for each in (without_annotation, with_class, with_text, lambda message: None)),
        *((each, False) for each in (*OTHERS, generator, decorated, partial(with_class), print)),
    ],
)
def test_a_function_of_one_message_is_plain_and_no_other_handler(function: Callable[..., Any], expected: bool) -> None:
    # SPEC B1
    assert is_plain(function, Message) is expected
