"""The consumer of a function, as far as its code tells: the values that `consumers` finds and rules read."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tarry.decide.backoff import Backoff
from tarry.decide.steps import EVERY_REASON, BuiltInStep

BUILT_IN: Mapping[str, type[BuiltInStep]] = {kind.__name__: kind for kind in BuiltInStep.__subclasses__()}
"""The built-in failure steps by name. They tell what they do, so no rule lists them."""


class Step(NamedTuple):
    """A failure step. ``queue`` is the name, URL or ARN that it is given; None for its default.

    ``kind`` is the name of a built-in step; empty for one of the user's own, or whose queue is not known. ``times`` is
    that of `SendAgain`; None if it is not known.
    """

    kind: str
    queue: str | None = None
    times: int | None = None

    @property
    def leads_to(self) -> str:
        """The kind of its outcome; empty for one of the user's own."""
        return BUILT_IN[self.kind].leads_to if self.kind else ""

    @property
    def passes_on(self) -> bool:
        """Whether it certainly passes some failures on."""
        return bool(self.kind) and BUILT_IN[self.kind].handles != EVERY_REASON


UNKNOWN_STEP = Step("")
DEFAULT_STEPS = (Step("RetryInPlace"), Step("DeadLetter"))
DEFAULT_MAX_ATTEMPTS = 5
Steps = Mapping[str, tuple[Step, ...]]
"""The steps by queue name, with ``"default"`` for other queues. A list that cannot be read is empty."""


class Attempts(NamedTuple):
    """The ``max_attempts`` of a consumer, and whether the code leaves it at its default."""

    number: int
    is_default: bool


class Decorator(NamedTuple):
    """A decorator of Powertools, by its name there."""

    name: str
    path: Path
    line: int


class ConsumerCode(NamedTuple):
    """A consumer, as far as its code tells."""

    steps: Steps
    attempts: Attempts | None = None
    """None if it is not certain."""
    model: tuple[Path, int] | None = None
    """The file and line of its model, if it certainly has one."""
    above: tuple[Decorator, ...] = ()
    """The decorators of Powertools above ``@consumer``."""
    backoff: Backoff | None = None
    """The backoff of its policy; None for the default."""
    is_backoff_known: bool = False

    def steps_for(self, queue: str) -> tuple[Step, ...]:
        """Return the steps for messages from a queue."""
        return self.steps.get(queue, self.steps["default"])
