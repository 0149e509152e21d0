"""Violations, the results of checkers; the rule that every fault of a test strikes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tarry.tools.testing.deliveries import MessageCopy
from tarry.tools.testing.recorded_history import RecordedHistory

MOMENT = 0.001
"""The tolerance for events before their due time: times are floats."""


@dataclass(frozen=True)
class Violation:
    """A broken rule; ``id`` is the message's stable id, an invocation's request id, or "" for a whole run."""

    rule: str
    id: str
    text: str
    at: float

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}" + (f" (message {self.id})" if self.id else "")


Found = Iterator[Violation]
Checker = Callable[[RecordedHistory], Found]


def violation(rule: str, copy: MessageCopy, text: str, at: float) -> Violation:
    """Return the violation of a rule by a message."""
    return Violation(rule, copy.id, text, at)


RULE = "faults strike"


def faults_strike(history: RecordedHistory) -> Found:
    """At the end of a settled run, each fault has struck: a test whose fault never strikes does not test it.

    A fault with ``times=n`` and ``chance=1`` must strike n times, any other at least once; with ``maybe=True`` it may
    never strike.
    """
    if not history.settled:
        return
    struck = Counter(event.fields["fault"] for event in history.faults)
    wanted: Counter[int] = Counter()
    described: dict[int, tuple[Mapping[str, Any], float]] = {}
    for event in history.planned_faults:
        if not event.fields["maybe"]:
            number, times = event.fields["fault"], event.fields["times"]
            is_certain = times is not None and event.fields["chance"] == 1
            wanted[number] = wanted[number] + times if is_certain else 1
            described[number] = event.fields, event.at
    for number, times in wanted.items():
        if struck[number] < times:
            fields, at = described[number]
            of = "" if fields["operation"] is None else f" of {fields['operation']}"
            on = "" if fields["queue"] is None else f" on {fields['queue']}"
            how_often = f"struck {struck[number]} of {times} times" if struck[number] else "never struck"
            text = (
                f"the fault {fields['kind']!r}{of}{on} {how_often}: check its operation=, queue=, times= and seconds= "
                "against what the run does (print(report)), or add it with maybe=True"
            )
            yield Violation(RULE, "", text, at)
