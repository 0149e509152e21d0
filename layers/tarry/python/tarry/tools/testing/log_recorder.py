"""Recording tarry's log in a history, for timelines and checkers."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tarry.tools.simulator.batch_errors import SeenKeys
from tarry.tools.simulator.functions import current_call
from tarry.tools.simulator.history import History
from tarry.tools.simulator.simulation import Actors

REPORTING = "FunctionResponseTypes: [ReportBatchItemFailures]"


def ignored_failures(answer: Mapping[str, Any], shown: SeenKeys) -> str:
    """Return a warning about an answer; empty if it has no ignored failures, or its mapping was warned about."""
    function, queue = answer.get("function", ""), answer.get("queue", "")
    if not (ignored := answer.get("ignored")) or not shown.is_new((function, queue)):
        return ""
    messages = f"{len(ignored)} message{'s'[: len(ignored) != 1]}"
    return (
        f"{function} returned batchItemFailures with {messages} of {queue}, but the mapping lacks "
        f"{REPORTING}: Lambda ignores the failures and deletes the whole batch."
    )


FIELDS = (
    "event", "state", "delivery_id", "message_id", "consumer", "queue", "attempt", "max_attempts", "delay", "reason",
    "error", "asked_for", "said", "sent_to", "dead_letter_queue", "not_sent", "not_settled", "text",
)  # fmt: skip


class _LogRecorder(logging.Handler):
    """A log handler that records transitions as ``transition_logged`` events, and all other events as ``problem``."""

    def __init__(self, history: History) -> None:
        super().__init__(logging.INFO)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        fields, call = vars(record), current_call()
        if "event" not in fields:
            return
        who = {} if call is None else {"request_id": call.request_id}
        what = "transition_logged" if fields.get("state") and fields.get("delivery_id") else "problem"
        shown = {name: value for name in FIELDS if (value := fields.get(name)) is not None}
        self._history.add(what, shown | who)


@contextmanager
def without_killed_processes(actors: Actors) -> Iterator[None]:
    """Drop the lines of killed processes, while they unwind, until the context ends: real ones would log no more."""

    def is_alive(record: logging.LogRecord) -> bool:
        return not actors.unwinding

    tarry = logging.getLogger("tarry")
    tarry.addFilter(is_alive)
    try:
        yield
    finally:
        tarry.removeFilter(is_alive)


@contextmanager
def recording_simulation(history: History, actors: Actors) -> Iterator[None]:
    """Record the log of a simulation until the context ends."""
    with recording_log(history), without_killed_processes(actors):
        yield


@contextmanager
def recording_log(history: History) -> Iterator[None]:
    """Record the log until the context ends, even if a test has silenced it; its other handlers still get it."""
    tarry, recorder = logging.getLogger("tarry"), _LogRecorder(history)
    before = tarry.level, tarry.disabled, tarry.manager.disable
    tarry.addHandler(recorder)
    tarry.disabled = False
    if tarry.manager.disable >= logging.INFO:
        logging.disable(logging.DEBUG)
    if tarry.getEffectiveLevel() > logging.INFO:
        tarry.setLevel(logging.INFO)
    try:
        yield
    finally:
        tarry.removeHandler(recorder)
        tarry.setLevel(before[0])
        tarry.disabled = before[1]
        logging.disable(before[2])
