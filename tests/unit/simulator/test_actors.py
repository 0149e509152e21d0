"""Actors: threads that run one at a time, in virtual time, in a reproducible order."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from tarry.tools.simulator import actors
from tarry.tools.simulator.actors import Blocked, Killed, Process
from tarry.tools.simulator.scheduler import START
from tarry.tools.simulator.simulation import ForeignThread, Simulation, WaitsForEver


def test_only_one_actor_runs_at_any_time(simulation: Simulation) -> None:
    """Each actor counts itself in and out around some work; two at once would show in the count."""
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            inside += 1
            most = max(most, inside)
            sum(range(2_000))
            inside -= 1
            simulation.clock.sleep(1)

    for _ in range(10):
        simulation.threads.start(work)
    simulation.scheduler.run()
    assert (inside, most) == (0, 1)


def test_actors_are_resumed_in_the_order_in_which_their_waits_end(simulation: Simulation) -> None:
    resumed: list[str] = []

    def work(name: str, seconds: float) -> None:
        simulation.clock.sleep(seconds)
        resumed.append(name)

    for name, seconds in [("slow", 3), ("fast", 1), ("slow too", 3), ("middle", 2)]:
        simulation.threads.start(lambda name=name, seconds=seconds: work(name, seconds))
    simulation.scheduler.run()
    assert resumed == ["fast", "middle", "slow", "slow too"]


def random_script(seed: int) -> list[tuple[str, int, float]]:
    """Run ten actors that sleep, wake and wait for each other at random; return what they did."""
    simulation, random, observed = Simulation(), Random(seed), []
    events = [simulation.threads.event() for _ in range(10)]

    def work(number: int) -> None:
        for _ in range(20):
            match random.randrange(3):
                case 0:
                    simulation.clock.sleep(random.choice([0, 1, 1.5]))
                case 1:
                    events[random.randrange(10)].set()
                case 2:
                    events[number].wait(random.choice([1, 2]))
                    events[number].clear()
            observed.append(("did", number, simulation.scheduler.now - START))

    for number in range(10):
        simulation.threads.start(lambda number=number: work(number))
    simulation.scheduler.run()
    simulation.close()
    return observed


def test_the_same_seed_gives_the_same_run() -> None:
    assert random_script(seed=7) == random_script(seed=7)
    assert len(random_script(seed=7)) == 200
    assert random_script(seed=7) != random_script(seed=8)


def test_an_action_of_the_scheduler_cannot_sleep(simulation: Simulation) -> None:
    simulation.scheduler.after(1, lambda: simulation.clock.sleep(1))
    with pytest.raises(RuntimeError, match="cannot wait"):
        simulation.scheduler.run()


def test_a_sleep_longer_than_a_run_ends_in_a_later_run(simulation: Simulation) -> None:
    woken: list[float] = []

    def work() -> None:
        simulation.clock.sleep(100)
        woken.append(simulation.clock.monotonic())

    simulation.threads.start(work)
    assert simulation.scheduler.run(START + 10) == "until"
    assert (woken, simulation.clock.monotonic()) == ([], 10)
    simulation.scheduler.run()
    assert woken == [100]


def test_the_condition_of_a_run_is_checked_between_the_steps_of_a_single_actor(simulation: Simulation) -> None:
    steps = 0

    def work() -> None:
        nonlocal steps
        for _ in range(10):
            steps += 1
            simulation.clock.sleep(1)

    simulation.threads.start(work)
    simulation.scheduler.run(lambda: steps == 3)
    assert steps == 3


def test_an_actor_runs_in_a_copy_of_the_context_of_its_starter(simulation: Simulation) -> None:
    colour: ContextVar[str] = ContextVar("colour")
    seen: list[str] = []

    def inner() -> None:
        seen.append(colour.get())
        colour.set("green")

    def outer() -> None:
        colour.set("blue")
        simulation.threads.start(inner).join()
        seen.append(colour.get())

    colour.set("red")
    simulation.threads.start(outer)
    simulation.scheduler.run()
    assert (seen, colour.get()) == (["blue", "blue"], "red")


# threads and events, as the runtime uses them


def test_a_join_waits_for_the_end_of_the_thread_or_its_timeout(simulation: Simulation) -> None:
    observed: list[tuple[bool, float]] = []

    def work() -> None:
        thread = simulation.threads.start(lambda: simulation.clock.sleep(10))
        for timeout in (3, 100):
            thread.join(timeout)
            observed.append((thread.is_alive(), simulation.clock.monotonic()))
        thread.join()

    simulation.threads.start(work)
    simulation.scheduler.run()
    assert observed == [(True, 3), (False, 10)]


def test_code_outside_of_actors_runs_the_scheduler_while_it_waits(simulation: Simulation) -> None:
    thread = simulation.threads.start(lambda: simulation.clock.sleep(10))
    thread.join(4)
    assert (thread.is_alive(), simulation.clock.monotonic()) == (True, 4)
    thread.join()
    assert (thread.is_alive(), simulation.clock.monotonic()) == (False, 10)
    happened: list[float] = []
    simulation.scheduler.after(10, lambda: happened.append(simulation.clock.monotonic()))
    simulation.clock.sleep(30)
    assert (happened, simulation.clock.monotonic()) == ([20], 40)
    with pytest.raises(WaitsForEver):
        simulation.threads.event().wait()
    assert simulation.threads.interrupt(1, lambda _: Interrupt()) is None


def test_an_event_wakes_all_actors_that_wait_for_it_also_if_it_is_cleared_at_once(simulation: Simulation) -> None:
    event = simulation.threads.event()
    observed: list[tuple[bool, float]] = []

    def work(timeout: float | None) -> None:
        observed.append((event.wait(timeout), simulation.clock.monotonic()))

    for timeout in (None, 5, 50):
        simulation.threads.start(lambda timeout=timeout: work(timeout))
    simulation.scheduler.after(10, event.set)
    simulation.scheduler.after(10, event.clear)
    simulation.scheduler.run()
    assert observed == [(False, 5), (True, 10), (True, 10)]
    assert simulation.scheduler.now == START + 10


def test_an_exception_of_an_actor_ends_the_run(simulation: Simulation) -> None:
    def work() -> None:
        simulation.clock.sleep(5)
        raise ZeroDivisionError

    simulation.threads.start(work)
    with pytest.raises(ZeroDivisionError):
        simulation.scheduler.run()
    assert simulation.clock.monotonic() == 5


def test_sys_exit_ends_only_the_actor_as_in_a_thread(simulation: Simulation) -> None:
    actor = simulation.actors.start(sys.exit)
    simulation.scheduler.run()
    assert not actor.is_alive()


# killed


def test_a_killed_actor_ends_in_its_wait_before_the_rest_of_the_action_that_kills(simulation: Simulation) -> None:
    """Its code can be recognized while it is unwound: its log lines are left out."""
    observed: list[object] = []

    def work() -> None:
        observed.append(simulation.actors.unwinding)
        try:
            simulation.clock.sleep(100)
            observed.append("survived")
        finally:
            observed.append(simulation.actors.unwinding)

    def kill() -> None:
        actor.process.kill()
        observed.append("killed")

    actor = simulation.actors.start(work)
    simulation.scheduler.after(10, kill)
    simulation.scheduler.run()
    assert (observed, actor.is_alive()) == ([False, True, "killed"], False)
    assert not simulation.actors.unwinding


def test_all_actors_of_a_process_are_killed_together(simulation: Simulation) -> None:
    observed: list[str] = []

    def child() -> None:
        simulation.clock.sleep(100)
        observed.append("child survived")

    def work() -> None:
        simulation.threads.start(child)
        simulation.clock.sleep(100)
        observed.append("survived")

    actor = simulation.actors.start(work)
    simulation.threads.start(lambda: (simulation.clock.sleep(50), observed.append("another process")))
    simulation.scheduler.after(10, actor.process.kill)
    simulation.scheduler.run()
    assert observed == ["another process"]


def test_a_killed_actor_that_catches_the_exception_is_killed_at_its_next_wait(simulation: Simulation) -> None:
    reached: list[str] = []

    def work() -> None:
        try:
            simulation.clock.sleep(100)
        except BaseException:  # noqa: BLE001 as the runtime does, to settle messages
            reached.append("settling")
            simulation.clock.sleep(1)
            reached.append("settled")

    actor = simulation.actors.start(work)
    simulation.scheduler.after(10, actor.process.kill)
    simulation.scheduler.run()
    assert (reached, simulation.clock.monotonic()) == (["settling"], 10)


def test_a_killed_actor_that_keeps_catching_the_exception_is_abandoned(simulation: Simulation) -> None:
    def work() -> None:
        while True:
            with suppress(BaseException):
                simulation.clock.sleep(1)

    actor = simulation.actors.start(work)
    simulation.scheduler.after(10.5, actor.process.kill)
    assert simulation.scheduler.run() == "idle"
    assert not actor.is_alive()


def test_a_process_can_end_itself(simulation: Simulation) -> None:
    observed: list[str] = []
    process = Process(simulation.actors, on_death=observed.append)

    def work() -> None:
        simulation.clock.sleep(5)
        process.die("signal: killed")

    actor = simulation.actors.start(work, process)
    simulation.scheduler.run()
    assert (observed, actor.is_alive()) == (["signal: killed"], False)


def test_closing_the_simulation_ends_all_threads() -> None:
    before = threading.active_count()
    simulation = Simulation()
    for _ in range(5):
        simulation.threads.start(simulation.threads.event().wait)
    simulation.scheduler.run()
    assert threading.active_count() == before + 5
    simulation.close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() == before


def test_an_actor_runs_in_the_thread_of_one_that_has_ended(simulation: Simulation) -> None:
    """To start a thread takes longer than most actors run. The context of the one before is not seen."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen: list[tuple[str, threading.Thread]] = []

    def work() -> None:
        seen.append((variable.get(), threading.current_thread()))
        variable.set("by the actor before")

    for _ in range(3):
        simulation.threads.start(work)
        simulation.scheduler.run()
    assert [text for text, _ in seen] == ["unset"] * 3
    assert len({thread for _, thread in seen}) == 1


def test_a_killed_actor_leaves_nothing_behind_in_the_thread_of_another(simulation: Simulation) -> None:
    """Such as an event loop that still runs, with coroutines of the killed process."""
    local = threading.local()

    def leave() -> None:
        local.left = True
        simulation.clock.sleep(100)

    killed = simulation.actors.start(leave)
    simulation.scheduler.after(10, killed.process.kill)
    simulation.scheduler.run()
    seen: list[bool] = []
    simulation.actors.start(lambda: seen.append(hasattr(local, "left")))
    simulation.scheduler.run()
    assert seen == [False]


# frozen


def test_the_waits_of_a_frozen_process_end_when_it_is_thawed(simulation: Simulation) -> None:  # PLATFORM 26
    process = Process(simulation.actors)
    woken: list[tuple[str, float]] = []

    def work(name: str, seconds: float) -> None:
        simulation.clock.sleep(seconds)
        woken.append((name, simulation.clock.monotonic()))

    for name, seconds in [("second", 20), ("first", 10), ("later", 200)]:
        simulation.actors.start(lambda name=name, seconds=seconds: work(name, seconds), process)
    simulation.scheduler.after(5, process.freeze)
    simulation.scheduler.after(100, process.thaw)
    simulation.scheduler.run()
    assert woken == [("first", 100), ("second", 100), ("later", 200)]


def test_a_frozen_process_can_be_killed(simulation: Simulation) -> None:
    ended: list[str] = []
    process = Process(simulation.actors)

    def work() -> None:
        try:
            simulation.clock.sleep(10)
        except Killed:
            ended.append("killed")

    simulation.actors.start(work, process)
    simulation.scheduler.after(5, process.freeze)
    simulation.scheduler.after(50, process.kill)
    simulation.scheduler.run()
    assert ended == ["killed"]


# misuse


def blocked_forever() -> None:
    threading.Event().wait()


def test_an_actor_that_really_blocks_ends_the_run_and_the_error_has_its_stack() -> None:
    simulation = Simulation(patience_seconds=0.1)
    other = simulation.threads.start(lambda: simulation.clock.sleep(100))
    simulation.threads.start(blocked_forever)
    with pytest.raises(Blocked) as error:
        simulation.scheduler.run()
    assert "in blocked_forever" in str(error.value)
    assert "threading.Event().wait()" in str(error.value)
    simulation.close()
    assert not other.is_alive()


def test_an_actor_that_waits_for_a_core_is_not_reported_as_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is runnable, but has used hardly any CPU time since the last check."""
    checks: list[int | None] = []

    def usage_on_a_busy_machine(native_id: int | None) -> tuple[bool, float]:
        checks.append(native_id)
        if len(checks) == 3:
            gets_a_core.set()
        return True, 0.01

    gets_a_core = threading.Event()
    monkeypatch.setattr(actors, "usage", usage_on_a_busy_machine)
    simulation = Simulation(patience_seconds=0.05)
    simulation.threads.start(lambda: gets_a_core.wait(60))
    simulation.scheduler.run()
    assert len(checks) >= 3
    simulation.close()


def test_an_actor_in_an_endless_loop_is_reported_as_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, it has a fifth of a core."""
    ended, used = threading.Event(), count()
    monkeypatch.setattr(actors, "usage", lambda native_id: (True, next(used) * 0.02))

    def loop() -> None:
        while not ended.is_set():
            pass

    simulation = Simulation(patience_seconds=0.1)
    simulation.threads.start(loop)
    with pytest.raises(Blocked, match="in loop"):
        simulation.scheduler.run()
    ended.set()
    simulation.close()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="a thread's state and CPU time are read from /proc")
def test_the_state_and_the_cpu_time_of_a_thread_are_known() -> None:
    before = time.thread_time()
    is_runnable, used = actors.usage(threading.get_native_id())
    assert is_runnable
    assert before - 0.05 < used < time.thread_time() + 0.05  # it is counted in hundredths
    assert actors.usage(None) == (False, 0.0)


def test_an_actor_that_advances_time_alone_is_not_reported_as_blocked() -> None:
    """An actor that is alone advances time without handing over control."""
    simulation = Simulation(patience_seconds=0.5)  # longer than a busy machine delays a thread
    began = time.monotonic()

    def work() -> None:
        while time.monotonic() - began < 0.7:
            simulation.clock.sleep(1)

    simulation.threads.start(work)
    simulation.scheduler.run()
    simulation.close()


def test_a_foreign_thread_may_run_code_but_cannot_wait_in_virtual_time(simulation: Simulation) -> None:
    observed: list[int] = []

    def swallow() -> None:
        observed.append(sum(range(100)))
        with suppress(Exception):
            simulation.clock.sleep(1)

    def handler() -> None:
        thread = threading.Thread(target=swallow, name="my own")
        thread.start()
        thread.join()
        simulation.clock.sleep(1)

    simulation.threads.start(handler)
    with pytest.raises(ForeignThread, match="'my own' was not started by the simulator"):
        simulation.scheduler.run()
    assert observed == [4950]


# errors, kills, and actors that start later


def test_an_error_of_an_action_is_raised_by_the_run(simulation: Simulation) -> None:
    woken: list[str] = []

    def work(name: str) -> None:
        simulation.clock.sleep(10)
        woken.append(name)

    for name in ("first", "second"):
        simulation.threads.start(partial(work, name))
    simulation.scheduler.after(5, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        simulation.scheduler.run()
    assert woken == []
    simulation.scheduler.run()
    assert woken == ["first", "second"]


def test_an_actor_that_starts_unless_an_event_is_set_has_no_thread_until_then(simulation: Simulation) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    ran: list[tuple[str, float, str]] = []

    def note(name: str) -> None:
        ran.append((name, simulation.clock.monotonic(), variable.get()))

    def work(name: str, set_after: float) -> None:
        variable.set(name)
        event = simulation.threads.event()
        simulation.threads.start_unless(event, 10, partial(note, name))
        simulation.clock.sleep(set_after)
        event.set()
        simulation.threads.start_unless(event, 10, partial(note, "never"))

    before = threading.active_count()
    for name, seconds in [("early", 5), ("late", 15)]:
        simulation.threads.start(partial(work, name, seconds))
    simulation.scheduler.run()
    assert ran == [("late", 10, "late")]
    assert threading.active_count() <= before + 3
    assert simulation.clock.monotonic() == 15, "no timer of an event that was set is left"


def test_an_actor_of_a_killed_process_does_not_start_later(simulation: Simulation) -> None:
    ran: list[str] = []

    def work() -> None:
        simulation.threads.start_unless(simulation.threads.event(), 10, lambda: ran.append("later"))
        simulation.clock.sleep(100)

    actor = simulation.actors.start(work)
    simulation.scheduler.after(5, actor.process.kill)
    simulation.scheduler.run()
    assert ran == []


# interruptions


class Interrupt(BaseException):
    """The exception that interrupts an actor."""


def interrupted(simulation: Simulation, wait: Callable[[], object], times: int = 1, postpone: float = 0) -> list[float]:
    """Run an actor that is interrupted after 10 s; return the times at which its waits were interrupted."""
    observed: list[float] = []
    answers = iter([postpone] if postpone else [])

    def work() -> None:
        interruption = simulation.threads.interrupt(10, lambda _: next(answers, Interrupt()))
        assert interruption is not None
        while len(observed) < times:
            try:
                wait()
            except Interrupt:
                observed.append(round(simulation.clock.monotonic(), 6))
        interruption.cancel()
        simulation.clock.sleep(60)

    simulation.threads.start(work)
    simulation.scheduler.run()
    return observed


def test_an_actor_is_interrupted_in_its_wait_again_and_again_unless_it_is_postponed() -> None:  # SPEC I3
    for times, postpone, expected in ((1, 0, [10]), (3, 0, [10, 10.1, 10.2]), (1, 5.0, [15])):
        for wait in (lambda one: one.clock.sleep(60), lambda one: one.threads.event().wait()):
            simulation = Simulation()
            assert interrupted(simulation, partial(wait, simulation), times, postpone) == expected
            assert simulation.clock.monotonic() == pytest.approx(expected[-1] + 60)
            simulation.close()


def test_an_event_is_not_missed_after_an_interruption(simulation: Simulation) -> None:
    event = simulation.threads.event()
    simulation.scheduler.after(20, event.set)
    assert interrupted(simulation, event.wait) == [10]
    assert event.is_set()
    assert simulation.clock.monotonic() == 70


@pytest.mark.parametrize("is_thawed", [True, False])
def test_an_actor_of_a_frozen_process_is_interrupted_when_that_is_thawed(
    is_thawed: bool, simulation: Simulation
) -> None:
    """Until then its timer stands still: otherwise the simulation would never come to rest."""
    process = Process(simulation.actors)
    observed: list[float] = []

    def work() -> None:
        interruption = simulation.threads.interrupt(10, lambda _: Interrupt())
        assert interruption is not None
        try:
            simulation.threads.event().wait()
        except Interrupt:
            observed.append(simulation.clock.monotonic())
        interruption.cancel()

    simulation.actors.start(work, process)
    simulation.scheduler.after(5, process.freeze)
    if is_thawed:
        simulation.scheduler.after(50, process.thaw)
    simulation.scheduler.run()
    assert observed == ([50] if is_thawed else [])
    assert simulation.clock.monotonic() == (50 if is_thawed else 10)
