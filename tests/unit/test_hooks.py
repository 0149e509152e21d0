"""Calling the user's hooks in the time that is left, and the threads for it."""

import gc
import threading

from tarry.support.hooks import HookInterrupted, Running, WorkerPool
from tarry.world import World
from tests.wire import TestClock


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
