"""Actors: one at a time, in virtual time, the same way each time."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from random import Random

import pytest

from tarry.simulator import actors
from tarry.simulator.errors import Blocked, ForeignThread, WaitsForEver
from tarry.simulator.process import Killed, Process
from tarry.simulator.stage import Stage
from tarry.simulator.timeline import START


def test_a_sleep_takes_virtual_time_alone(stage: Stage) -> None:
    woken: list[float] = []

    def work() -> None:
        stage.clock.sleep(12 * 3600)
        woken.append(stage.clock.monotonic())

    stage.threads.start(work)
    began = time.process_time()
    stage.timeline.run()
    assert woken == [12 * 3600]
    assert time.process_time() - began < 10


def test_only_one_actor_runs_at_any_time(stage: Stage) -> None:
    """Each counts itself in and out around work that another would run into, if it could."""
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            inside += 1
            most = max(most, inside)
            sum(range(2_000))
            inside -= 1
            stage.clock.sleep(1)

    for _ in range(10):
        stage.threads.start(work)
    stage.timeline.run()
    assert (inside, most) == (0, 1)


def test_actors_go_on_in_the_order_in_which_their_waits_end(stage: Stage) -> None:
    went_on: list[str] = []

    def work(name: str, seconds: float) -> None:
        stage.clock.sleep(seconds)
        went_on.append(name)

    for name, seconds in [("slow", 3), ("fast", 1), ("slow too", 3), ("middle", 2)]:
        stage.threads.start(lambda name=name, seconds=seconds: work(name, seconds))
    stage.timeline.run()
    assert went_on == ["fast", "middle", "slow", "slow too"]


def a_script(seed: int) -> list[tuple[str, int, float]]:
    """Ten actors that sleep, wake and wait for each other by chance; what they did."""
    stage, random, told = Stage(), Random(seed), []
    flags = [stage.threads.event() for _ in range(10)]

    def work(number: int) -> None:
        for _ in range(20):
            match random.randrange(3):
                case 0:
                    stage.clock.sleep(random.choice([0, 1, 1.5]))
                case 1:
                    flags[random.randrange(10)].set()
                case 2:
                    flags[number].wait(random.choice([1, 2]))
                    flags[number].clear()
            told.append(("did", number, stage.timeline.now - START))

    for number in range(10):
        stage.threads.start(lambda number=number: work(number))
    stage.timeline.run()
    stage.close()
    return told


def test_the_same_script_takes_the_same_course_each_time() -> None:
    assert a_script(seed=7) == a_script(seed=7)
    assert len(a_script(seed=7)) == 200
    assert a_script(seed=7) != a_script(seed=8)


def test_a_sleep_outside_of_any_actor_lets_happen_what_happens_meanwhile(stage: Stage) -> None:
    happened: list[float] = []
    stage.timeline.after(10, lambda: happened.append(stage.clock.monotonic()))
    stage.clock.sleep(30)
    assert (happened, stage.clock.monotonic()) == ([10], 30)


def test_what_happens_on_the_timeline_cannot_sleep(stage: Stage) -> None:
    stage.timeline.after(1, lambda: stage.clock.sleep(1))
    with pytest.raises(RuntimeError, match="cannot wait"):
        stage.timeline.run()


def test_a_long_sleep_ends_with_the_run_that_it_is_too_long_for(stage: Stage) -> None:
    woken: list[float] = []

    def work() -> None:
        stage.clock.sleep(100)
        woken.append(stage.clock.monotonic())

    stage.threads.start(work)
    assert stage.timeline.run(START + 10) == "until"
    assert (woken, stage.clock.monotonic()) == ([], 10)
    stage.timeline.run()
    assert woken == [100]


def test_a_condition_is_seen_between_the_steps_of_an_actor_that_is_alone(stage: Stage) -> None:
    steps = 0

    def work() -> None:
        nonlocal steps
        for _ in range(10):
            steps += 1
            stage.clock.sleep(1)

    stage.threads.start(work)
    stage.timeline.run(lambda: steps == 3)
    assert steps == 3


def test_an_actor_runs_in_a_copy_of_the_context_it_is_started_from(stage: Stage) -> None:
    colour: ContextVar[str] = ContextVar("colour")
    seen: list[str] = []

    def inner() -> None:
        seen.append(colour.get())
        colour.set("green")

    def outer() -> None:
        colour.set("blue")
        stage.threads.start(inner).join()
        seen.append(colour.get())

    colour.set("red")
    stage.threads.start(outer)
    stage.timeline.run()
    assert (seen, colour.get()) == (["blue", "blue"], "red")


# threads and events, as the runtime uses them


def test_a_join_waits_for_the_end_or_for_as_long_as_it_is_given(stage: Stage) -> None:
    told: list[tuple[bool, float]] = []

    def work() -> None:
        thread = stage.threads.start(lambda: stage.clock.sleep(10))
        for timeout in (3, 100):
            thread.join(timeout)
            told.append((thread.is_alive(), stage.clock.monotonic()))
        thread.join()

    stage.threads.start(work)
    stage.timeline.run()
    assert told == [(True, 3), (False, 10)]


def test_a_test_can_join_an_actor(stage: Stage) -> None:
    thread = stage.threads.start(lambda: stage.clock.sleep(10))
    thread.join(4)
    assert (thread.is_alive(), stage.clock.monotonic()) == (True, 4)
    thread.join()
    assert (thread.is_alive(), stage.clock.monotonic()) == (False, 10)


def test_an_event_wakes_who_waits_for_it(stage: Stage) -> None:
    event = stage.threads.event()
    told: list[tuple[bool, float]] = []

    def work(timeout: float | None) -> None:
        told.append((event.wait(timeout), stage.clock.monotonic()))

    for timeout in (None, 5, 50):
        stage.threads.start(lambda timeout=timeout: work(timeout))
    stage.timeline.after(10, event.set)
    stage.timeline.run()
    assert told == [(False, 5), (True, 10), (True, 10)]
    assert stage.timeline.now == START + 10


def test_an_event_that_is_cleared_at_once_has_happened_all_the_same(stage: Stage) -> None:
    event = stage.threads.event()
    told: list[bool] = []
    stage.threads.start(lambda: told.append(event.wait()))
    stage.timeline.after(1, event.set)
    stage.timeline.after(1, event.clear)
    stage.timeline.run()
    assert told == [True]


def test_waiting_for_what_nothing_brings_about_is_an_error(stage: Stage) -> None:
    with pytest.raises(WaitsForEver):
        stage.threads.event().wait()


def test_what_an_actor_raises_ends_the_run(stage: Stage) -> None:
    def work() -> None:
        stage.clock.sleep(5)
        raise ZeroDivisionError

    stage.threads.start(work)
    with pytest.raises(ZeroDivisionError):
        stage.timeline.run()
    assert stage.clock.monotonic() == 5


def test_an_actor_that_exits_just_ends_as_a_thread_does(stage: Stage) -> None:
    actor = stage.actors.start(sys.exit)
    stage.timeline.run()
    assert not actor.is_alive()


# killed


def test_an_actor_that_is_killed_ends_where_it_waits(stage: Stage) -> None:
    told: list[str] = []

    def work() -> None:
        try:
            stage.clock.sleep(100)
            told.append("survived")
        finally:
            told.append("unwound")

    actor = stage.actors.start(work)
    stage.timeline.after(10, actor.process.kill)
    stage.timeline.run()
    assert (told, actor.is_alive()) == (["unwound"], False)


def test_all_actors_of_a_process_are_killed_together(stage: Stage) -> None:
    told: list[str] = []

    def child() -> None:
        stage.clock.sleep(100)
        told.append("child survived")

    def work() -> None:
        stage.threads.start(child)
        stage.clock.sleep(100)
        told.append("survived")

    actor = stage.actors.start(work)
    stage.threads.start(lambda: (stage.clock.sleep(50), told.append("another process")))
    stage.timeline.after(10, actor.process.kill)
    stage.timeline.run()
    assert told == ["another process"]


def test_an_actor_that_catches_its_end_is_ended_again_at_each_wait(stage: Stage) -> None:
    reached: list[str] = []

    def work() -> None:
        try:
            stage.clock.sleep(100)
        except BaseException:  # noqa: BLE001 as the runtime does, to settle what it can
            reached.append("settling")
            stage.clock.sleep(1)
            reached.append("settled")

    actor = stage.actors.start(work)
    stage.timeline.after(10, actor.process.kill)
    stage.timeline.run()
    assert (reached, stage.clock.monotonic()) == (["settling"], 10)


def test_an_actor_that_catches_its_end_too_often_is_left_standing(stage: Stage) -> None:
    def work() -> None:
        while True:
            with suppress(BaseException):
                stage.clock.sleep(1)

    actor = stage.actors.start(work)
    stage.timeline.after(10.5, actor.process.kill)
    assert stage.timeline.run() == "idle"
    assert not actor.is_alive()


def test_a_process_can_end_itself(stage: Stage) -> None:
    told: list[str] = []
    process = Process(stage.actors, on_death=told.append)

    def work() -> None:
        stage.clock.sleep(5)
        process.die("signal: killed")

    actor = stage.actors.start(work, process)
    stage.timeline.run()
    assert (told, actor.is_alive()) == (["signal: killed"], False)


def test_the_code_of_a_killed_actor_knows_itself_as_such(stage: Stage) -> None:
    """So that what it logs while it is unwound can be left out."""
    told: list[bool] = []

    def work() -> None:
        told.append(stage.actors.unwinding)
        try:
            stage.clock.sleep(100)
        finally:
            told.append(stage.actors.unwinding)

    actor = stage.actors.start(work)
    stage.timeline.after(10, actor.process.kill)
    stage.timeline.run()
    assert told == [False, True]
    assert not stage.actors.unwinding


def test_closing_the_stage_ends_all_threads() -> None:
    before = threading.active_count()
    stage = Stage()
    for _ in range(5):
        stage.threads.start(stage.threads.event().wait)
    stage.timeline.run()
    assert threading.active_count() == before + 5
    stage.close()
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threading.active_count() == before


# frozen


def test_a_frozen_process_sees_only_when_it_is_thawed_that_its_waits_are_over(stage: Stage) -> None:  # PLATFORM 26
    process = Process(stage.actors)
    woken: list[tuple[str, float]] = []

    def work(name: str, seconds: float) -> None:
        stage.clock.sleep(seconds)
        woken.append((name, stage.clock.monotonic()))

    for name, seconds in [("second", 20), ("first", 10), ("later", 200)]:
        stage.actors.start(lambda name=name, seconds=seconds: work(name, seconds), process)
    stage.timeline.after(5, process.freeze)
    stage.timeline.after(100, process.thaw)
    stage.timeline.run()
    assert woken == [("first", 100), ("second", 100), ("later", 200)]


def test_a_frozen_process_can_be_killed(stage: Stage) -> None:
    ended: list[str] = []
    process = Process(stage.actors)

    def work() -> None:
        try:
            stage.clock.sleep(10)
        except Killed:
            ended.append("killed")

    stage.actors.start(work, process)
    stage.timeline.after(5, process.freeze)
    stage.timeline.after(50, process.kill)
    stage.timeline.run()
    assert ended == ["killed"]


# what must not be


def blocked_forever() -> None:
    threading.Event().wait()


def test_an_actor_that_really_blocks_ends_the_run_and_is_shown_where_it_stands() -> None:
    stage = Stage(patience_seconds=0.1)
    stage.threads.start(blocked_forever)
    with pytest.raises(Blocked) as error:
        stage.timeline.run()
    assert "in blocked_forever" in str(error.value)
    assert "threading.Event().wait()" in str(error.value)
    stage.close()


def test_an_actor_that_a_busy_machine_lets_wait_is_not_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could run, and has hardly done so since the last look."""
    looks: list[int | None] = []

    def of_a_busy_machine(native_id: int | None) -> tuple[bool, float]:
        looks.append(native_id)
        if len(looks) == 3:
            gets_a_core.set()
        return True, 0.01

    gets_a_core = threading.Event()
    monkeypatch.setattr(actors, "usage", of_a_busy_machine)
    stage = Stage(patience_seconds=0.05)
    stage.threads.start(lambda: gets_a_core.wait(60))
    stage.timeline.run()
    assert len(looks) >= 3
    stage.close()


def test_an_actor_that_computes_without_an_end_is_blocked() -> None:
    ended = threading.Event()

    def loop() -> None:
        while not ended.is_set():
            pass

    stage = Stage(patience_seconds=0.1)
    stage.threads.start(loop)
    with pytest.raises(Blocked, match="in loop"):
        stage.timeline.run()
    ended.set()
    stage.close()


def test_an_actor_that_is_alone_and_moves_time_on_is_not_blocked() -> None:
    """It need not hand over for that."""
    stage = Stage(patience_seconds=0.5)  # longer than a busy machine lets a thread wait
    began = time.monotonic()

    def work() -> None:
        while time.monotonic() - began < 0.7:
            stage.clock.sleep(1)

    stage.threads.start(work)
    stage.timeline.run()
    stage.close()


def test_after_a_blocked_actor_the_others_can_still_be_ended() -> None:
    stage = Stage(patience_seconds=0.1)
    other = stage.threads.start(lambda: stage.clock.sleep(100))
    stage.threads.start(blocked_forever)
    with pytest.raises(Blocked):
        stage.timeline.run()
    stage.close()
    assert not other.is_alive()


def test_a_thread_started_past_the_simulator_cannot_wait_in_virtual_time(stage: Stage) -> None:
    def handler() -> None:
        thread = threading.Thread(target=swallow, args=(lambda: stage.clock.sleep(1),), name="my own")
        thread.start()
        thread.join()
        stage.clock.sleep(1)

    stage.threads.start(handler)
    with pytest.raises(ForeignThread, match="'my own' was started past the simulator"):
        stage.timeline.run()


def test_a_thread_started_past_the_simulator_may_do_what_takes_no_virtual_time(stage: Stage) -> None:
    told: list[int] = []

    def handler() -> None:
        thread = threading.Thread(target=lambda: told.append(sum(range(100))))
        thread.start()
        thread.join()

    stage.threads.start(handler)
    stage.timeline.run()
    assert told == [4950]


def swallow(work: Callable[[], None]) -> None:
    with suppress(Exception):
        work()


def test_handing_over_is_cheap(stage: Stage) -> None:
    """Two actors in turn, each step a hand-over there and one back."""
    steps = 2_000

    def work() -> None:
        for _ in range(steps):
            stage.clock.sleep(1)

    for _ in range(2):
        stage.threads.start(work)
    began = time.process_time()
    stage.timeline.run()
    assert (time.process_time() - began) / (2 * 2 * steps) < 0.001, "it is about 0.00002"


# interruptions


class Stop(BaseException):
    """What interrupts."""


def test_an_actor_is_interrupted_where_it_sleeps(stage: Stage) -> None:  # SPEC I3
    told: list[float] = []

    def work() -> None:
        interruption = stage.threads.interrupt(10, lambda _: Stop())
        assert interruption is not None
        try:
            stage.clock.sleep(60)
        except Stop:
            told.append(stage.clock.monotonic())
        interruption.cancel()
        stage.clock.sleep(60)
        told.append(stage.clock.monotonic())

    stage.threads.start(work)
    stage.timeline.run()
    assert told == [10, 70]


def test_an_actor_that_swallows_an_interruption_is_interrupted_again(stage: Stage) -> None:  # SPEC I3
    told: list[float] = []

    def work() -> None:
        interruption = stage.threads.interrupt(10, lambda _: Stop())
        assert interruption is not None
        while len(told) < 3:
            try:
                stage.threads.event().wait()
            except Stop:
                told.append(round(stage.clock.monotonic(), 6))
        interruption.cancel()

    stage.threads.start(work)
    stage.timeline.run()
    assert told == [10, 10.1, 10.2]


def test_an_interruption_may_be_put_off(stage: Stage) -> None:
    told: list[float] = []

    def work() -> None:
        answers = iter([5.0, Stop()])
        interruption = stage.threads.interrupt(10, lambda _: next(answers))
        assert interruption is not None
        with suppress(Stop):
            stage.clock.sleep(60)
        interruption.cancel()
        told.append(stage.clock.monotonic())

    stage.threads.start(work)
    stage.timeline.run()
    assert told == [15]


def test_what_was_waited_for_is_not_missed_after_an_interruption(stage: Stage) -> None:
    told: list[bool] = []
    flag = stage.threads.event()

    def work() -> None:
        interruption = stage.threads.interrupt(10, lambda _: Stop())
        assert interruption is not None
        with suppress(Stop):
            flag.wait()
        interruption.cancel()
        told.append(flag.wait(30))

    stage.threads.start(work)
    stage.timeline.after(20, flag.set)
    stage.timeline.run()
    assert told == [True]
    assert stage.clock.monotonic() == 20


def test_outside_of_actors_nothing_is_interrupted(stage: Stage) -> None:
    assert stage.threads.interrupt(1, lambda _: Stop()) is None
