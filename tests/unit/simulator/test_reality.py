"""Calls of a handler that would leave virtual time: real sleeps, and the end of the process."""

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from time import sleep as sleep_imported_by_name
from time import time as real_time

import pytest

from tarry.tools.simulator import actors
from tarry.tools.simulator.actors import Blocked, Process
from tarry.tools.simulator.passing_time import passing_time
from tarry.tools.simulator.simulation import RealSleep, Simulation
from tests.unit.simulator.conftest import Stage


def charge() -> None:
    time.sleep(30)


def test_a_real_sleep_ends_the_run_whatever_the_handler_catches_and_the_error_has_its_location(stage: Stage) -> None:
    def work() -> None:
        time.sleep(0)  # allowed
        try:
            charge()
        except Exception:  # noqa: BLE001 as handlers do
            stage.note("caught")

    with pytest.raises(RealSleep) as error:
        stage.run(work)
    line = charge.__code__.co_firstlineno + 1
    assert f"test_reality.py:{line} in charge() calls time.sleep(30)" in str(error.value)
    assert "tarry.world.current().clock.sleep" in str(error.value)
    assert str(error.value).endswith("time.sleep(30)")
    assert stage.noted == []


def test_a_sleep_imported_by_name_is_detected_by_the_time_it_takes() -> None:
    simulation = Simulation(patience_seconds=0.1)
    simulation.threads.start(lambda: sleep_imported_by_name(0.4))
    with pytest.raises(Blocked, match=r"lambda: sleep_imported_by_name\(0\.4\)"):
        simulation.scheduler.run()
    simulation.close()


def test_an_actor_that_goes_on_while_its_state_is_read_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole process may have stood still, as on a busy machine."""
    simulation, may_go_on, real = Simulation(patience_seconds=0.01), threading.Event(), actors.usage

    def usage(native_id: int | None) -> tuple[bool, float]:
        actor = simulation.actors.running
        may_go_on.set()
        while actor is not None and actor._back.locked():
            sleep_imported_by_name(0.001)
        return real(native_id)

    monkeypatch.setattr(actors, "usage", usage)
    simulation.threads.start(may_go_on.wait)
    simulation.scheduler.run()
    simulation.close()


def test_a_sleep_outside_of_actors_is_real_and_a_test_may_replace_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.sleep
    stage.scheduler.after(1, lambda: time.sleep(0.001))
    stage.run(stage.sleeper("", 1))
    assert time.sleep is real
    monkeypatch.setattr(time, "sleep", stage.sleep)
    stage.run(charge)
    assert stage.now == 31


def get_nothing(empty: queue.Queue[int]) -> None:
    with pytest.raises(queue.Empty):
        empty.get(timeout=30)


def until_true(condition: threading.Condition) -> None:
    with condition:
        assert not condition.wait_for(lambda: False, 30)


def sleep_until(now: Callable[[], float], seconds: float) -> None:
    ends_at = now() + seconds
    while now() < ends_at:
        time.sleep(1)


WAITS: dict[str, Callable[[], object]] = {
    "time.sleep": lambda: time.sleep(30),
    "an event": lambda: threading.Event().wait(30),
    "a semaphore": lambda: threading.Semaphore(0).acquire(timeout=30),
    "an empty queue": lambda: get_nothing(queue.Queue()),
    "a condition": lambda: until_true(threading.Condition()),
    "a future": lambda: wait([Future[int]()], timeout=30),
    "a loop on the monotonic clock": lambda: sleep_until(time.monotonic, 30),
    "a loop on the time of day": lambda: sleep_until(time.time, 30),
    "a loop on nanoseconds": lambda: sleep_until(lambda: time.perf_counter_ns() / 1e9, 30),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_that_pass_virtual_time(stage: Stage, name: str) -> None:  # SPEC N3
    with passing_time(stage.actors):
        stage.run(WAITS[name])
    assert 29 < stage.now <= 30
    assert time.sleep is sleep_imported_by_name


def test_a_wait_ends_early_when_a_thread_of_the_actor_ends_it(stage: Stage) -> None:  # SPEC N3
    def work() -> None:
        event = threading.Event()
        thread = threading.Thread(target=lambda: (sleep_imported_by_name(0.01), event.set()))
        thread.start()
        assert event.wait(30)
        thread.join(30)
        assert not thread.is_alive()
        with ThreadPoolExecutor(1) as threads:
            assert wait([threads.submit(sleep_imported_by_name, 0.01)], timeout=30).not_done == set()

    with passing_time(stage.actors):
        stage.run(work)
    assert stage.now == 0


def test_waits_outside_of_actors_take_real_time(stage: Stage) -> None:
    with passing_time(stage.actors):
        assert not threading.Event().wait(0.001)
        time.sleep(0.001)
        assert abs(time.time() - real_time()) < 5
    assert stage.now == 0


def test_an_actor_that_exits_ends_only_its_own_process(stage: Stage) -> None:
    for status in (3, 0):
        stage.run(lambda status=status: os._exit(status), process=Process(stage.actors, stage.note))
    assert [reason for reason, _ in stage.noted] == ["exit status 3", ""]
