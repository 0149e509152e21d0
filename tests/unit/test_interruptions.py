"""Interrupting the main thread by SIGALRM: with real signals, in fractions of a second.

On a busy machine a timer may fire late, and a test may be late to wait for it. So `StopOnce` waits for the test, and
the remaining time of a timer is compared with the time that has passed.
"""

import asyncio
import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tarry import Message, consumer, world
from tarry.message.invocation import Invocation
from tarry.run.jobs import Job
from tarry.run.tasks import TaskExecutor
from tarry.support.hooks import HookInterrupted, HookTimeout, HookWorkers, Running, WorkerPool, _in_thread, call
from tarry.world import RealThreads, World, hook_limit, use
from tests.records import Context, record
from tests.wire import NoThreads, TestClock, Wire

LONG = 60
"""Seconds that no test here really waits."""
RETRY_SECONDS = 0.005


class StopTest(BaseException):
    """The interruption of a test's block."""


class StopOnce:
    """A callback that raises `StopTest` once, in the block of a test; before that, the interruption retries."""

    def __init__(self, answer: Callable[[], BaseException | float] = StopTest) -> None:
        self._answer = answer
        self._waits = False
        self.calls = 0
        """How often the interruption called this object within a block."""

    def __call__(self, frame: FrameType | None) -> BaseException | float:
        if not self._waits or frame is None or not frame.f_code.co_name.startswith("test_"):
            return RETRY_SECONDS
        self.calls += 1
        answer = self._answer()
        self._waits = not isinstance(answer, BaseException)
        return answer

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        self._waits = True
        with pytest.raises(StopTest):
            yield


@pytest.fixture(autouse=True)
def _restore_alarm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def stop() -> StopOnce:
    return StopOnce()


@contextlib.contextmanager
def interruption(seconds: float, fire: Any = None) -> Iterator[Any]:
    """Interrupt the main thread after some seconds, until the end of the block."""
    made = RealThreads().interrupt(seconds, fire or StopOnce())
    assert made is not None
    yield made
    made.cancel()


def own(*_: Any) -> None: ...


def seconds_left() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_code_that_swallows_an_interruption_is_interrupted_repeatedly_in_its_own_frame(stop: StopOnce) -> None:
    # SPEC I3
    began = time.monotonic()
    with interruption(0.01, stop):
        for _ in range(3):
            with stop.here():
                time.sleep(LONG)
    assert stop.calls == 3
    assert time.monotonic() - began < LONG / 2


def test_a_signal_that_a_system_call_did_not_see_is_repeated(stop: StopOnce) -> None:
    """SPEC I7. One that comes just before a call blocks is handled after it, and the call may hang."""
    with interruption(0.01, stop):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        signal.sigwait({signal.SIGALRM})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        with stop.here():
            time.sleep(LONG)


def test_a_timer_and_a_signal_handler_of_the_user_continue_with_the_time_left() -> None:  # SPEC I3
    received: list[int] = []
    began = time.monotonic()
    signal.signal(signal.SIGALRM, handler := lambda number, _: received.append(number))
    signal.setitimer(signal.ITIMER_REAL, 600, 7)
    with interruption(300):
        time.sleep(0.02)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 600 - (time.monotonic() - began) - 0.01 <= left <= 599.98
    assert interval == 7
    assert signal.getsignal(signal.SIGALRM) is handler
    signal.raise_signal(signal.SIGALRM)
    assert received == [signal.SIGALRM]


@pytest.mark.parametrize("seconds", [1e12, sys.maxsize, -1.0])
def test_any_time_can_be_waited_for(seconds: float, stop: StopOnce) -> None:
    """The operating system refuses a timer beyond its range; the callback is called early, and then again."""
    before = signal.getsignal(signal.SIGALRM)
    with interruption(seconds, stop):
        signal.raise_signal(signal.SIGALRM)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("seconds", [0, 600])
def test_a_handler_and_a_timer_that_user_code_sets_meanwhile_stay_after_tarry_has_taken_them_back(
    seconds: int, renews: bool, stop: StopOnce
) -> None:  # SPEC I3, A6
    """Tarry's own timer ends. Until then, a signal that was taken back interrupts."""
    with interruption(LONG, stop) as made:
        signal.signal(signal.SIGALRM, own)
        if seconds:
            signal.setitimer(signal.ITIMER_REAL, seconds)
        if renews:
            made.renew()
            assert seconds_left() < 1  # soon, in case the time was up before
            with stop.here() if seconds else contextlib.nullcontext():
                time.sleep(LONG if seconds else 0)
    assert signal.getsignal(signal.SIGALRM) is own
    assert seconds_left() == 0 if seconds == 0 else 500 < seconds_left() <= 600


def test_a_handler_of_tarry_that_user_code_restores_later_interrupts_no_invocation(stop: StopOnce) -> None:  # SPEC A6
    with interruption(LONG):
        left = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, left)
    signal.raise_signal(signal.SIGALRM)
    with interruption(LONG, stop) as later:
        signal.signal(signal.SIGALRM, left)
        signal.raise_signal(signal.SIGALRM)
        later.renew()
        with stop.here():
            time.sleep(LONG)


def test_an_interruption_within_another_restores_it(stop: StopOnce) -> None:
    with interruption(0.05, stop):
        with interruption(LONG):
            pass
        with stop.here():
            time.sleep(LONG)


def test_only_the_main_thread_can_be_interrupted() -> None:  # SPEC I3
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(RealThreads().interrupt(0.01, StopOnce())))
    thread.start()
    thread.join()
    assert results == [None]


# without the operating system: the exact times


class Signals:
    """The functions of `signal` that tarry uses, with a clock that a test moves."""

    SIGALRM, ITIMER_REAL = signal.SIGALRM, signal.ITIMER_REAL

    def __init__(self) -> None:
        self.handler: Any = signal.SIG_DFL
        self.timer: tuple[float, float] = (0, 0)
        """The seconds that are left, and the interval."""
        self.now = 1_000.0

    def signal(self, _: int, handler: Any) -> Any:
        before, self.handler = self.handler, handler
        return before

    def getsignal(self, _: int) -> Any:
        return self.handler

    def setitimer(self, _: int, seconds: float, interval: float = 0) -> tuple[float, float]:
        before, self.timer = self.timer, (seconds, interval)
        return before

    def getitimer(self, _: int) -> tuple[float, float]:
        return self.timer


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Signals:
    signals = Signals()
    monkeypatch.setattr(world, "_signal", signals)
    monkeypatch.setattr(world, "monotonic", lambda: signals.now)
    return signals


OFTEN = 0.101
"""The interval in which tarry's timer repeats its signal."""


@pytest.mark.parametrize(
    ("seconds", "timer"), [(5, 5), (0.001, 0.001), (0, 0.001), (-3, 0.001), (1e6, 1e6), (sys.maxsize, 1e6)]
)
def test_an_interruption_comes_after_its_time_and_then_when_its_callback_says(
    seconds: float, timer: float, signals: Signals
) -> None:  # SPEC I3
    answers: list[Any] = [0.3, -1.0, 2e6, StopTest()]
    with interruption(seconds, lambda frame: answers.pop(0)) as made:
        assert signals.timer == (timer, OFTEN)
        for later in (0.3, 0.001, 1e6):
            signals.handler(signal.SIGALRM, None)
            assert signals.timer == (later, OFTEN)
        with pytest.raises(StopTest):
            signals.handler(signal.SIGALRM, None)
        assert signals.timer == (0.1, OFTEN)
        ring = signals.handler
    ring(signal.SIGALRM, None)  # it is cancelled: the callback, which has no more answers, is not called
    assert (signals.handler, signals.timer, made._handler) == (signal.SIG_DFL, (0, 0), None)


def test_a_signal_handler_set_outside_of_python_or_no_timer_at_all_permits_no_interruption(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals.handler = None
    assert RealThreads().interrupt(5, StopOnce()) is None
    signals.handler = own
    monkeypatch.setattr(world, "CAN_SET_TIMER", False)
    assert RealThreads().interrupt(5, StopOnce()) is None


@pytest.mark.parametrize(
    ("handler", "timer", "renewed", "left"),
    [
        (None, (4, OFTEN), (4, OFTEN), (0, 0)),  # as it was set
        (None, (0, OFTEN), (0.05, OFTEN), (0, 0)),  # it was stopped
        (own, (4, OFTEN), (0.05, OFTEN), (0, 0)),
        (own, (4, 0.10104), (0.05, OFTEN), (0, 0)),  # as a system may round it
        (own, (4, 0.1012), (0.05, OFTEN), (1, 0.1012)),
        (own, (4, 0), (0.05, OFTEN), (1, 0)),
        (own, (0, 0), (0.05, OFTEN), (0, 0)),
    ],
)
def test_renewing_takes_the_signal_and_the_timer_of_other_code_and_cancelling_gives_them_back(
    handler: Any, timer: Any, renewed: Any, left: Any, signals: Signals
) -> None:  # SPEC I3
    with interruption(5) as made:
        ours = signals.handler
        signals.handler, signals.timer = handler or ours, timer
        made.renew()
        assert (signals.handler, signals.timer) == (ours, renewed)
        signals.now += 3
    assert signals.handler is (handler or signal.SIG_DFL)
    assert signals.timer == left


@pytest.mark.parametrize(("timer", "left"), [((600, 7), (597, 7)), ((2, 0), (0.001, 0))])
def test_a_timer_of_the_user_goes_on_with_the_time_that_is_left_or_at_once(
    timer: Any, left: Any, signals: Signals
) -> None:  # SPEC I3
    signals.timer = timer
    with interruption(5):
        signals.now += 3
    assert signals.timer == left


@pytest.mark.parametrize(("timer", "left"), [((4, OFTEN), (0, 0)), ((4, 7), (4, 7)), ((0, 0), (0, 0))])
def test_cancelling_leaves_the_signal_handler_and_the_timer_that_other_code_has_set(
    timer: Any, left: Any, signals: Signals
) -> None:  # SPEC A6
    with interruption(5) as made:
        signals.handler, signals.timer = own, timer
    assert (signals.handler, signals.timer) == (own, left)
    signals.handler = None
    made.renew()
    assert (signals.handler, signals.timer) == (None, left)


def test_a_thread_is_a_daemon_and_one_that_starts_unless_an_event_is_set_does_its_work_only_without_the_event() -> None:
    threads, ran, worked = RealThreads(), [], threading.Event()
    is_set = threads.event()
    is_set.set()
    threads.start_unless(is_set, 0.001, lambda: ran.append("never"))
    threads.start_unless(threads.event(), 0.001, worked.set)
    assert worked.wait(LONG)
    assert ran == []
    assert threads.start(worked.set).daemon  # type: ignore[attr-defined]


# hooks of the user


def test_code_is_interrupted_once_its_time_is_over_and_only_while_it_runs() -> None:  # SPEC I7
    clock = TestClock()
    running = Running(clock.monotonic, 5, HookInterrupted)

    def hook() -> str:
        assert running.fire(None) == 5
        clock.sleep(4)
        assert running.fire(None) == 1
        clock.sleep(1)
        assert isinstance(running.fire(None), HookInterrupted)
        return "result"

    before, result, after = running.fire(None), running.run(hook), running.fire(None)
    assert (before, result, after) == (0.05, "result", 0.05)
    assert isinstance(running.interrupted, HookInterrupted)


class Limit:
    """The time for hooks, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.in_hooks = 0.0

    def hook_seconds(self, _: float) -> float:
        return self._seconds


@pytest.mark.parametrize("seconds", [-0.5, 0, 0.5, LONG, float("inf")])
def test_a_hook_is_called_if_time_is_left_and_its_time_counts(seconds: float) -> None:  # SPEC I7
    here, limit, alarm = World(clock=TestClock()), Limit(seconds), signal.getsignal(signal.SIGALRM)

    def hook(answer: Any) -> Any:
        assert hook_limit.get() is None  # hooks within it only add to its own time
        here.clock.sleep(3)
        return answer() if callable(answer) else call("inner", lambda: answer)

    token = hook_limit.set(limit)
    with use(here):
        if seconds <= 0:
            with pytest.raises(HookTimeout, match=r"^redact was not called: no time was left\. Give the fu") as raised:
                call("redact", hook, "result")
            assert (raised.value.was_called, limit.in_hooks, here.in_hooks) == (False, 0, 0)
        else:
            assert call("redact", hook, "result") == "result"
            with pytest.raises(ZeroDivisionError):
                call("redact", hook, lambda: 1 / 0)
            assert (limit.in_hooks, here.in_hooks) == (6, 6)
    assert (hook_limit.get(), signal.getsignal(signal.SIGALRM)) == (limit, alarm)
    hook_limit.reset(token)


def test_at_most_twenty_hooks_run_in_threads_at_once() -> None:  # SPEC I7
    here = World()
    for running in (19, 20):
        before = here.keep(HookWorkers).running = {object() for _ in range(running)}
        with contextlib.nullcontext() if running < 20 else pytest.raises(HookTimeout, match="20 hooks still run"):
            assert _in_thread("redact", here, LONG, lambda: len(here.keep(HookWorkers).running)) == 20
        assert len(before) == running


@pytest.mark.parametrize("threads", [RealThreads(), NoThreads()], ids=["in a thread", "without any"])
def test_a_hook_in_a_thread_returns_or_raises_and_the_next_one_gets_the_thread(threads: RealThreads) -> None:
    here, ends_at = World(threads=threads), time.monotonic() + LONG
    pool, used = here.keep(HookWorkers), set[threading.Thread]()
    for _ in range(2):
        used.add(_in_thread("redact", here, LONG, threading.current_thread))
        while type(threads) is RealThreads and not pool._idle and time.monotonic() < ends_at:
            time.sleep(0)
    assert len(used) == 1
    with pytest.raises(ZeroDivisionError):
        _in_thread("redact", here, LONG, lambda: 1 / 0)


def test_idle_threads_end_with_their_world_so_that_the_tests_of_a_user_do_not_collect_them() -> None:
    before, works = set(threading.enumerate()), threading.Event()
    here = World()
    here.keep(WorkerPool).start(works.set)
    works.wait()
    [thread] = set(threading.enumerate()) - before
    assert thread.is_alive()
    del here
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


# which handler blocks the event loop


def frame_in(file: str) -> FrameType:
    found: dict[str, Any] = {"sys": sys}
    exec(compile("frame = sys._getframe()", file, "exec"), found)
    frame: FrameType = found["frame"]
    return frame


def test_a_handler_blocks_the_loop_in_its_own_code_only() -> None:  # SPEC I3
    invocation = Invocation(Wire().world, Context(30), lambda _: None, consumer(print).log)
    message: Message = Message(record(), "m1", invocation)
    found: dict[str, Any] = {}

    async def coordinate() -> None:
        executor = TaskExecutor(invocation)

        def note(place: str, frame: FrameType | None = frame_in("app.py")) -> None:  # noqa: B008
            found[place] = executor.is_blocked_by(frame)

        async def left_behind() -> None:
            note("a task of the handler")

        async def handler(_: Message) -> None:
            note("first step")
            await asyncio.sleep(0)
            note("later step")
            note("unknown frame", None)
            note("in asyncio", frame_in(asyncio.__file__))
            await asyncio.create_task(left_behind())
            job.has_ended = True
            note("its end is noted")

        found["job"] = job = Job(handler, message)
        if not executor.start(job):
            await executor.ended(60)
        note("the coordinator")
        executor.close()

    asyncio.run(coordinate())
    job = found.pop("job")
    assert found == {
        **dict.fromkeys(("first step", "later step", "unknown frame"), job), "a task of the handler": True,
        **dict.fromkeys(("in asyncio", "its end is noted", "the coordinator"), False),
    }  # fmt: skip
