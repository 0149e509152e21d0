"""What of the real world a handler would reach past the simulator."""

import os
import time
from time import sleep as sleep_imported_by_name

import pytest

from tarry.simulator.errors import Blocked, RealSleep
from tarry.simulator.process import Process
from tarry.simulator.stage import Stage


def charge() -> None:
    time.sleep(30)


def test_a_real_sleep_ends_the_run_and_is_named(stage: Stage) -> None:
    stage.threads.start(charge)
    with pytest.raises(RealSleep) as error:
        stage.timeline.run()
    line = charge.__code__.co_firstlineno + 1
    assert f"test_reality.py:{line} in charge() calls time.sleep(30)" in str(error.value)
    assert "tarry.world.current().clock.sleep" in str(error.value)
    assert str(error.value).endswith("time.sleep(30)")


def test_a_sleep_of_no_time_is_no_sleep(stage: Stage) -> None:
    stage.threads.start(lambda: time.sleep(0))
    stage.timeline.run()


def test_a_real_sleep_is_no_error_that_a_handler_could_catch(stage: Stage) -> None:
    survived: list[str] = []

    def work() -> None:
        try:
            time.sleep(30)
        except Exception:  # noqa: BLE001 as handlers do
            survived.append("caught")

    stage.threads.start(work)
    with pytest.raises(RealSleep):
        stage.timeline.run()
    assert survived == []


def test_a_sleep_imported_by_name_is_found_out_by_the_time_it_takes() -> None:
    stage = Stage(patience_seconds=0.1)
    stage.threads.start(lambda: sleep_imported_by_name(0.4))
    with pytest.raises(Blocked, match=r"lambda: sleep_imported_by_name\(0\.4\)"):
        stage.timeline.run()
    stage.close()


def test_a_test_may_put_a_sleep_of_its_own_in_the_place(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", stage.clock.sleep)
    stage.threads.start(charge)
    stage.timeline.run()
    assert stage.clock.monotonic() == 30


def test_outside_of_actors_a_sleep_is_a_sleep(stage: Stage) -> None:
    real = time.sleep
    stage.timeline.after(1, lambda: time.sleep(0.001))
    stage.threads.start(lambda: stage.clock.sleep(1))
    stage.timeline.run()
    assert time.sleep is real


def test_an_actor_that_exits_ends_its_own_process_alone(stage: Stage) -> None:
    told: list[str] = []
    stage.actors.start(lambda: os._exit(3), Process(stage.actors, told.append))
    stage.actors.start(lambda: os._exit(0), Process(stage.actors, told.append))
    stage.timeline.run()
    assert told == ["exit status 3", ""]
