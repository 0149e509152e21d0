"""Actors: threads that run one at a time, in virtual time, in a reproducible order."""

import sys
import threading
import time
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
from tests.unit.simulator.conftest import Stage


def test_only_one_actor_runs_at_any_time(stage: Stage) -> None:
    """Each actor counts itself in and out around some work; two at once would show in the count."""
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            inside += 1
            most = max(most, inside)
            sum(range(2_000))
            inside -= 1
            stage.sleep(1)

    stage.run(*[work] * 10)
    assert (inside, most) == (0, 1)


def test_actors_are_resumed_in_the_order_in_which_their_waits_end(stage: Stage) -> None:
    waits = [("slow", 3), ("fast", 1), ("slow too", 3), ("middle", 2)]
    assert stage.run(*(stage.sleeper(*each) for each in waits)) == [
        ("fast", 1), ("middle", 2), ("slow", 3), ("slow too", 3),
    ]  # fmt: skip


def test_the_same_seed_gives_the_same_run() -> None:
    """Ten actors sleep, wake and wait for each other at random."""

    def noted(seed: int) -> list[object]:
        stage, random = Stage(Simulation()), Random(seed)
        events = [stage.actors.event() for _ in range(10)]

        def work(number: int) -> None:
            for _ in range(20):
                match random.randrange(3):
                    case 0:
                        stage.sleep(random.choice([0, 1, 1.5]))
                    case 1:
                        events[random.randrange(10)].set()
                    case 2:
                        events[number].wait(random.choice([1, 2]))
                        events[number].clear()
                stage.note(number)

        stage.run(*(partial(work, number) for number in range(10)))
        stage.simulation.close()
        return stage.noted

    assert len(noted(7)) == 200
    assert noted(7) == noted(7) != noted(8)


def test_a_run_may_end_before_a_sleep_and_its_condition_is_checked_between_the_steps_of_a_single_actor(
    stage: Stage,
) -> None:
    stage.actors.start(stage.sleeper("woken", 100))
    assert stage.scheduler.run(START + 10) == "until"
    assert (stage.noted, stage.now) == ([], 10)
    assert stage.run() == [("woken", 100)]

    def steps() -> None:
        while True:
            stage.note("step")
            stage.sleep(1)

    stage.actors.start(steps)
    assert stage.scheduler.run(lambda: len(stage.noted) == 4) == "until"
    assert stage.noted[1:] == [("step", 100), ("step", 101), ("step", 102)]


def test_an_actor_runs_in_a_copy_of_the_context_of_its_starter(stage: Stage) -> None:
    colour: ContextVar[str] = ContextVar("colour")

    def inner() -> None:
        stage.note(colour.get())
        colour.set("green")

    def outer() -> None:
        colour.set("blue")
        stage.simulation.threads.start(inner).join()
        stage.note(colour.get())

    colour.set("red")
    assert [seen for seen, _ in stage.run(outer)] == ["blue", "blue"]
    assert colour.get() == "red"


# threads and events, as the runtime uses them


def test_a_join_waits_for_the_end_of_the_thread_or_its_timeout(stage: Stage) -> None:
    def work() -> None:
        thread = stage.simulation.threads.start(stage.sleeper("ended", 10))
        for timeout in (3, 100, None):
            thread.join(timeout)
            stage.note(thread.is_alive())

    assert stage.run(work) == [(True, 3), ("ended", 10), (False, 10), (False, 10)]


def test_code_outside_of_actors_runs_the_scheduler_while_it_waits(stage: Stage) -> None:
    thread = stage.simulation.threads.start(stage.sleeper("ended", 10))
    for timeout, seen in ((4, (True, 4)), (None, (False, 10))):
        thread.join(timeout)
        assert (thread.is_alive(), stage.now) == seen
    stage.scheduler.after(10, partial(stage.note, "an action"))
    stage.sleep(30)
    assert (stage.noted[1:], stage.now) == ([("an action", 20)], 40)
    with pytest.raises(WaitsForEver):
        stage.actors.event().wait()
    assert stage.simulation.threads.interrupt(1, lambda _: Interrupt()) is None


def test_an_event_wakes_all_actors_that_wait_for_it_also_if_it_is_cleared_at_once(stage: Stage) -> None:
    event = stage.actors.event()
    for action in (event.set, event.clear):
        stage.scheduler.after(10, action)
    waits = [partial(lambda timeout: stage.note(event.wait(timeout)), timeout) for timeout in (None, 5, 50)]
    assert stage.run(*waits) == [(False, 5), (True, 10), (True, 10)]
    assert stage.now == 10


def test_an_error_of_an_actor_or_an_action_is_raised_by_the_run_and_sys_exit_ends_only_its_actor(stage: Stage) -> None:
    for seconds, error in ((5, ZeroDivisionError), (6, RuntimeError)):
        stage.actors.start(stage.sleeper("survives", 10 - stage.now))
        if seconds == 5:
            stage.actors.start(lambda: (stage.sleep(5), 1 / 0))
            exits = stage.actors.start(sys.exit)
        else:
            stage.scheduler.after(1, partial(stage.sleep, 1))  # an action of the scheduler cannot wait
        with pytest.raises(error, match="division by zero" if seconds == 5 else "cannot wait"):
            stage.scheduler.run()
        assert (stage.noted, stage.now) == ([], seconds)
    assert not exits.is_alive()
    assert stage.run() == [("survives", 10)] * 2


# killed


def test_a_killed_actor_ends_in_its_wait_before_the_rest_of_the_action_that_kills(stage: Stage) -> None:
    """All actors of the process end, also one that is killed while frozen. Code that is unwound can be recognized."""

    def work() -> None:
        stage.simulation.threads.start(stage.sleeper("the child survived", 100))
        try:
            stage.sleep(100)
        except Killed:
            stage.note("unwinding" if stage.actors.unwinding else "not unwinding")
            raise

    def kill(process: Process) -> None:
        process.kill()
        stage.note("killed")

    one, frozen = Process(stage.actors), Process(stage.actors)
    for process in (one, frozen):
        stage.actors.start(work, process)
    stage.actors.start(stage.sleeper("another process", 70))
    stage.scheduler.after(5, frozen.freeze)
    for at, process in ((10, one), (50, frozen)):
        stage.scheduler.after(at, partial(kill, process))
    assert stage.run() == [
        ("unwinding", 10), ("killed", 10), ("unwinding", 50), ("killed", 50), ("another process", 70),
    ]  # fmt: skip
    assert not stage.actors.unwinding


def test_a_killed_actor_that_catches_the_exception_is_killed_at_its_next_wait_and_in_the_end_abandoned(
    stage: Stage,
) -> None:
    def settles() -> None:
        try:
            stage.sleep(100)
        except BaseException:  # noqa: BLE001 as the runtime does, to settle messages
            stage.note("settling")
            stage.sleep(1)
            stage.note("settled")

    def catches_on() -> None:
        while True:
            with suppress(BaseException):
                stage.sleep(1)

    for work in (settles, catches_on):
        assert not stage.kill_at(10.5, work).is_alive()
    assert (stage.noted, stage.now) == ([("settling", 10.5)], 21)


def test_a_process_can_end_itself_and_its_actors_do_not_start_later(stage: Stage) -> None:
    process = Process(stage.actors, on_death=stage.note)

    def work() -> None:
        stage.simulation.threads.start_unless(stage.actors.event(), 10, partial(stage.note, "later"))
        stage.sleep(5)
        process.die("signal: killed")

    assert stage.run(work, process=process) == [("signal: killed", 5)]


def test_closing_the_simulation_ends_all_threads() -> None:
    before = set(threading.enumerate())  # of other tests; they may end at any time
    simulation = Simulation()
    for _ in range(5):
        simulation.threads.start(simulation.threads.event().wait)
    simulation.scheduler.run()
    started = set(threading.enumerate()) - before
    assert len(started) == 5
    simulation.close()
    for thread in started:
        thread.join(60)
        assert not thread.is_alive()


def test_an_actor_runs_in_the_thread_of_one_that_has_ended_and_sees_nothing_of_it(stage: Stage) -> None:
    """To start a thread takes longer than most actors run. A killed actor leaves nothing, such as an event loop."""
    colour: ContextVar[str] = ContextVar("colour", default="unset")
    local, threads = threading.local(), set()

    def work() -> None:
        threads.add(threading.current_thread())
        stage.note((colour.get(), hasattr(local, "left")))
        colour.set("by the actor before")

    def leave() -> None:
        local.left = True
        stage.sleep(100)

    for _ in range(3):
        stage.run(work)
    stage.kill_at(10, leave)
    stage.run(work)
    assert [seen for seen, _ in stage.noted] == [("unset", False)] * 4
    assert len(threads) == 2


def test_the_waits_of_a_frozen_process_end_when_it_is_thawed(stage: Stage) -> None:  # PLATFORM 26
    process = Process(stage.actors)
    stage.scheduler.after(5, process.freeze)
    stage.scheduler.after(100, process.thaw)
    waits = [("second", 20), ("first", 10), ("later", 200)]
    woken = stage.run(*(stage.sleeper(*each) for each in waits), process=process)
    assert woken == [("first", 100), ("second", 100), ("later", 200)]


def test_an_actor_that_starts_unless_an_event_is_set_has_no_thread_until_then(stage: Stage) -> None:
    colour: ContextVar[str] = ContextVar("colour")

    def work(name: str, set_after: float) -> None:
        colour.set(name)
        event = stage.actors.event()
        stage.actors.start_unless(event, 10, lambda: stage.note((name, colour.get())))
        stage.sleep(set_after)
        event.set()
        stage.actors.start_unless(event, 10, partial(stage.note, "never"))

    before = set(threading.enumerate())
    assert stage.run(partial(work, "early", 5), partial(work, "late", 15)) == [(("late", "late"), 10)]
    assert len(set(threading.enumerate()) - before) <= 3
    assert stage.now == 15, "no timer of an event that was set is left"


# misuse


def blocked_forever() -> None:
    threading.Event().wait()


def test_an_actor_that_really_blocks_ends_the_run_and_the_error_has_its_stack() -> None:
    simulation = Simulation(patience_seconds=0.1)
    other = simulation.threads.start(lambda: simulation.clock.sleep(100))
    simulation.threads.start(blocked_forever)
    with pytest.raises(Blocked, match=r"(?s)in blocked_forever.*threading\.Event\(\)\.wait\(\)"):
        simulation.scheduler.run()
    simulation.close()
    assert not other.is_alive()


def test_an_actor_that_waits_for_a_core_is_not_reported_as_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is runnable, but has used hardly any CPU time since the last check."""
    checks, gets_a_core = count(1), threading.Event()

    def usage_on_a_busy_machine(native_id: int | None) -> tuple[bool, float]:
        if next(checks) == 3:
            gets_a_core.set()
        return True, 0.01

    monkeypatch.setattr(actors, "usage", usage_on_a_busy_machine)
    simulation = Simulation(patience_seconds=0.05)
    simulation.threads.start(lambda: gets_a_core.wait(60))
    simulation.scheduler.run()
    assert next(checks) > 3
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


def test_a_foreign_thread_may_run_code_but_cannot_wait_in_virtual_time(stage: Stage) -> None:
    def swallow() -> None:
        stage.noted.append((sum(range(100)), 0))
        with suppress(Exception):
            stage.sleep(1)

    def handler() -> None:
        thread = threading.Thread(target=swallow, name="my own")
        thread.start()
        thread.join()
        stage.sleep(1)

    with pytest.raises(ForeignThread, match="'my own' was not started by the simulator"):
        stage.run(handler)
    assert stage.noted == [(4950, 0)]


# interruptions


class Interrupt(BaseException):
    """The exception that interrupts an actor."""


@pytest.mark.parametrize("waits_for", ["a time", "an event", "an event that is set later"])
@pytest.mark.parametrize(
    ("times", "postpone", "expected"), [(1, 0, [10]), (3, 0, [10, 10.1, 10.2]), (1, 5, [15])],
    ids=["once", "again and again", "postponed"],
)  # fmt: skip
def test_an_actor_is_interrupted_in_its_wait_again_and_again_unless_it_is_postponed(
    stage: Stage, waits_for: str, times: int, postpone: float, expected: list[float]
) -> None:  # SPEC I3
    answers, event = iter([postpone] if postpone else []), stage.actors.event()
    if waits_for == "an event that is set later":
        stage.scheduler.after(20, event.set)

    def work() -> None:
        interruption = stage.simulation.threads.interrupt(10, lambda _: next(answers, Interrupt()))
        while len(stage.noted) < times:
            try:
                stage.sleep(60) if waits_for == "a time" else event.wait()
            except Interrupt:
                stage.note("interrupted")
        interruption.cancel()
        stage.sleep(60)

    assert [round(at, 6) for _, at in stage.run(work)] == expected
    assert stage.now == pytest.approx(expected[-1] + 60)
    assert event.is_set() == (waits_for == "an event that is set later"), "it is not missed after an interruption"


@pytest.mark.parametrize("is_thawed", [True, False])
def test_an_actor_of_a_frozen_process_is_interrupted_when_that_is_thawed(is_thawed: bool, stage: Stage) -> None:
    """Until then its timer stands still: otherwise the simulation would never come to rest."""
    process = Process(stage.actors)

    def work() -> None:
        interruption = stage.simulation.threads.interrupt(10, lambda _: Interrupt())
        try:
            stage.actors.event().wait()
        except Interrupt:
            stage.note("interrupted")
        interruption.cancel()

    stage.scheduler.after(5, process.freeze)
    if is_thawed:
        stage.scheduler.after(50, process.thaw)
    assert stage.run(work, process=process) == ([("interrupted", 50)] if is_thawed else [])
    assert stage.now == (50 if is_thawed else 10)
