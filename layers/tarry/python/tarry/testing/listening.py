"""Hearing what tarry's log says of messages, for stories and checkers."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tarry.simulator.functions import current_call

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tarry.simulator.actors import Actors
    from tarry.simulator.history import History

FIELDS = (
    "event", "state", "delivery_id", "message_id", "queue", "attempt", "delay", "reason", "error", "asked_for",
    "sent_to", "dead_letter_queue", "not_sent", "not_settled", "text",
)  # fmt: skip


class _Ear(logging.Handler):
    """Records each transition that the log tells of as ``said``, and what else it tells as a ``problem``."""

    def __init__(self, history: History, actors: Actors) -> None:
        super().__init__(logging.INFO)
        self._history = history
        self._actors = actors

    def emit(self, record: logging.LogRecord) -> None:
        told, call = vars(record), current_call()
        if "event" not in told:
            return
        who = {} if call is None else {"request_id": call.request_id}
        what = "said" if told.get("state") and told.get("delivery_id") else "problem"
        self._history.record(what, **{name: told[name] for name in FIELDS if told.get(name) is not None}, **who)


class _OnlyTheLiving(logging.Filter):
    """Drops what a killed process logs while it unwinds: a real one logs nothing once it is dead."""

    def __init__(self, actors: Actors) -> None:
        super().__init__()
        self._actors = actors

    def filter(self, record: logging.LogRecord) -> bool:
        return not self._actors.unwinding


@contextmanager
def without_the_dead(actors: Actors) -> Iterator[None]:
    """Drops what killed processes log as long as the context lasts."""
    tarry, silence = logging.getLogger("tarry"), _OnlyTheLiving(actors)
    tarry.addFilter(silence)
    try:
        yield
    finally:
        tarry.removeFilter(silence)


@contextmanager
def listening(history: History, actors: Actors) -> Iterator[None]:
    """Hears the log as long as the context lasts, also where a test has silenced it; it goes wherever else it goes."""
    tarry, ear = logging.getLogger("tarry"), _Ear(history, actors)
    before = tarry.level, tarry.disabled, tarry.manager.disable
    tarry.addHandler(ear)
    tarry.disabled = False
    if tarry.manager.disable >= logging.INFO:
        logging.disable(logging.DEBUG)
    if tarry.getEffectiveLevel() > logging.INFO:
        tarry.setLevel(logging.INFO)
    try:
        with without_the_dead(actors):
            yield
    finally:
        tarry.removeHandler(ear)
        tarry.setLevel(before[0])
        tarry.disabled = before[1]
        logging.disable(before[2])
