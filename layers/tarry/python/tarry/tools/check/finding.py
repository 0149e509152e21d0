"""The findings of rules."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class At(NamedTuple):
    """A place in a template: a resource, and the keys below it. ``keys`` may go on where the template ends."""

    resource: str
    keys: tuple[str, ...] = ()

    def below(self, *keys: str) -> "At":
        """Return a place below this one."""
        return At(self.resource, (*self.keys, *keys))


class SafeChange(NamedTuple):
    """A part of the one safe answer to a finding: the place of a property, and its value as YAML that is JSON too."""

    at: At
    value: str


@dataclass(frozen=True)
class Finding:
    """A mistake in a template or in the code of its functions.

    ``text`` is one line: the problem and the remedy. ``snippet`` is what to add to the template, as one line of YAML.
    """

    rule: str
    functions: tuple[str, ...]
    """The logical ids of the functions it is about."""
    text: str
    snippet: str = ""
    file: Path | None = None
    line: int | None = None
    at: At | None = None
    """The place in the template, if it is of a resource there."""
    changes: tuple[SafeChange, ...] = ()
    """The one safe answer: the changes that, made together, leave neither this finding nor another in its place."""

    @property
    def is_error(self) -> bool:
        """Whether messages are certainly lost, or AWS refuses the template."""
        return self.rule.startswith("E")


def subject(functions: Sequence[str], one: str, several: str) -> str:
    """Return the functions with the verb for one or for several of them."""
    return f"{listed(functions)} {one if len(functions) == 1 else several}"


def listed(names: Iterable[str]) -> str:
    """Return the names as an English list: ``a, b and c``."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


RULES: Mapping[str, str] = {
    "W9001": "The build of a function lacks modules that its code imports.",
    "W9003": "The role of a function lacks permissions that its consumer needs.",
    "W9004": "A queue allows fewer receives than the consumer has attempts.",
    "W9005": "A decorator of Powertools above a consumer makes it fail.",
    "E9010": "Lambda ignores the list of failed messages, and deletes them.",
    "E9011": "The visibility timeout is shorter than the timeout of the function.",
    "W9012": "The visibility timeout is shorter than six times the timeout of the function plus the batching window.",
    "W9014": "A queue with a function has no dead-letter queue.",
    "E9015": "A dead-letter queue has another type than its source queue.",
    "W9016": "A dead-letter queue does not keep messages for longer than its source queue.",
    "E9017": "A queue is its own dead-letter queue.",
    "W9018": "A dead-letter queue has a dead-letter queue.",
    "W9019": "A dead-letter queue takes smaller messages than its source queue.",
    "W9020": "No alarm tells of the messages in a dead-letter queue.",
    "W9021": "The alarm of a dead-letter queue is on a metric that misses dead letters.",
    "W9022": "The role of a function allows actions that lose messages, and its code does not use them.",
    "E9023": "The role of a function allows no use of the key that encrypts its queue.",
    "E9024": "Lambda refuses the batch size or the window of a mapping from a FIFO queue.",
    "E9025": "Lambda refuses the batch size or the window of a mapping.",
    "W9027": "The retries of a consumer take longer than its queue keeps messages.",
    "W9028": "The retries of a consumer keep messages in flight for so long that few failures fill the queue.",
    "W9029": "A consumer sends copies to its own queue until Lambda stops it.",
    "W9030": "The last failure step of a consumer does not take every failure.",
    "W9031": "A function reserves less concurrency than its queues use.",
    "E9032": "A consumer has a runtime on which tarry does not run.",
    "W9033": "A message has so many attributes that its dead letter has no failure record.",
    "W9034": "The timeout of a function leaves no time to settle a message whose handler hangs.",
}
"""The rules of `tarry check`. E: messages are certainly lost, or AWS refuses the template. W: the others."""
