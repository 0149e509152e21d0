"""The time that a run which gave up would still need."""

from datetime import datetime

from tarry.message.outcomes import State
from tarry.testing import Transition
from tarry.tools.local.runs.report import Waits
from tarry.tools.local.show.timeline import MessageTimeline
from tarry.tools.simulator.lambda_invoke import PendingCall

BEGAN = 1_000_000.0


def message(state: State, delay: float | None = None, id: str = "m") -> MessageTimeline:
    return MessageTimeline(id, "orders", 1, [Transition(BEGAN, state, id, "orders", 1, delay)])


def test_the_give_up_that_would_suffice_is_named_if_it_is_known() -> None:
    virtual, real = Waits(BEGAN, is_real=False), Waits(BEGAN, is_real=True)
    waiting = [message(State.WAITING_RETRY, 95.0), message(State.WAITING_RETRY, 42.0), message(State.COMMITTED)]
    assert virtual.for_messages(waiting, ()) == ", the last is due after 1 min 35 s (--give-up 110 waits for it)"
    at = f"{datetime.fromtimestamp(BEGAN + 95):%H:%M:%S}"  # noqa: DTZ006 local time is shown
    assert real.for_messages(waiting, ()) == (
        f", the last is due at {at} (--give-up 110 waits for it, --skip-time skips the wait)"
    )
    running = [*waiting, message(State.IN_FLIGHT, id="n")]
    assert virtual.for_messages(running, ()) == " (--give-up SECONDS waits longer)"
    assert virtual.for_messages(running, {"m", "n"}) == ""
    assert virtual.for_messages([message(State.COMMITTED)], ()) == ""


def test_asynchronous_invocations_that_did_not_end_are_named_with_the_time_they_need() -> None:
    calls = [
        PendingCall("Mailer", BEGAN + 60, BEGAN + 180),
        PendingCall("Biller", BEGAN + 120, BEGAN + 120),
        PendingCall("Mailer", BEGAN + 5, BEGAN + 5),
    ]
    assert list(Waits(BEGAN, is_real=False).for_calls(calls)) == [
        "2 asynchronous invocations of Mailer did not end, the last attempt is due after 3 min "
        "(--give-up 190 waits for it).",
        "1 asynchronous invocation of Biller did not end, the last attempt is due after 2 min "
        "(--give-up 130 waits for it).",
    ]
