"""Calls of a handler that would leave virtual time: real sleeps, and the end of the process."""

import os
import time
from time import sleep as sleep_imported_by_name

import pytest

from tarry.simulator.errors import Blocked, RealSleep
from tarry.simulator.process import Process
from tarry.simulator.simulation import Simulation


def charge() -> None:
    time.sleep(30)


def test_a_real_sleep_ends_the_run_and_the_error_has_its_location(simulation: Simulation) -> None:
    simulation.threads.start(charge)
    with pytest.raises(RealSleep) as error:
        simulation.scheduler.run()
    line = charge.__code__.co_firstlineno + 1
    assert f"test_reality.py:{line} in charge() calls time.sleep(30)" in str(error.value)
    assert "tarry.world.current().clock.sleep" in str(error.value)
    assert str(error.value).endswith("time.sleep(30)")


def test_a_real_sleep_of_0_seconds_is_allowed(simulation: Simulation) -> None:
    simulation.threads.start(lambda: time.sleep(0))
    simulation.scheduler.run()


def test_a_handler_cannot_catch_the_error_for_a_real_sleep(simulation: Simulation) -> None:
    survived: list[str] = []

    def work() -> None:
        try:
            time.sleep(30)
        except Exception:  # noqa: BLE001 as handlers do
            survived.append("caught")

    simulation.threads.start(work)
    with pytest.raises(RealSleep):
        simulation.scheduler.run()
    assert survived == []


def test_a_sleep_imported_by_name_is_detected_by_the_time_it_takes() -> None:
    simulation = Simulation(patience_seconds=0.1)
    simulation.threads.start(lambda: sleep_imported_by_name(0.4))
    with pytest.raises(Blocked, match=r"lambda: sleep_imported_by_name\(0\.4\)"):
        simulation.scheduler.run()
    simulation.close()


def test_a_test_may_replace_the_sleep(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", simulation.clock.sleep)
    simulation.threads.start(charge)
    simulation.scheduler.run()
    assert simulation.clock.monotonic() == 30


def test_a_sleep_outside_of_actors_is_real(simulation: Simulation) -> None:
    real = time.sleep
    simulation.scheduler.after(1, lambda: time.sleep(0.001))
    simulation.threads.start(lambda: simulation.clock.sleep(1))
    simulation.scheduler.run()
    assert time.sleep is real


def test_an_actor_that_exits_ends_only_its_own_process(simulation: Simulation) -> None:
    reasons: list[str] = []
    simulation.actors.start(lambda: os._exit(3), Process(simulation.actors, reasons.append))
    simulation.actors.start(lambda: os._exit(0), Process(simulation.actors, reasons.append))
    simulation.scheduler.run()
    assert reasons == ["exit status 3", ""]
