"""What SQS and Lambda may do that an orderly test does not expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from tarry.simulator.sqs.message import StoredMessage

REORDER_WITHIN_MESSAGES = 1000  # no message is passed by more than so many later ones


@dataclass(frozen=True)
class Realism:
    """The behaviour of AWS that a test can switch on or off.

    ``reorder``, ``partial`` and ``duplicate`` are off by default, so that a plain test is orderly; they are drawn from
    the random source of the model, so the same seed does the same. The others are on by default: a consumer must cope
    with them, and they need no luck.
    """

    reorder: bool = False
    """Messages are received in any order."""
    partial: bool = False
    """A receive returns a part of what is there. One that does not wait sometimes returns nothing."""
    duplicate: float = 0.0
    """The chance that a received message is delivered once more within its visibility timeout: while it is hidden, or
    after it was deleted. A message comes back from its deletion at most once."""
    old_handles_act: bool = True
    """On a standard queue a receipt handle of an earlier delivery changes the visibility of the current one."""
    late_changes_are_ignored: bool = True
    """On a standard queue a visibility change after the lease has expired succeeds and hides nothing."""
    recursion_is_stopped: bool = True
    """Lambda refuses to invoke a function with a message that the function's own sends led to 16 times."""

    def rank(self, message: StoredMessage, random: Random) -> float:
        """Its place among those that can be received."""
        return message.position + (random.uniform(0, REORDER_WITHIN_MESSAGES) if self.reorder else 0)

    def sample(self, most: int, random: Random, *, waits: bool) -> int:
        """How many messages a receive of ``most`` returns at most. One that waits asks all of SQS's servers."""
        return random.randint(1 if waits else 0, most) if self.partial else most

    def echo_after(self, visibility_seconds: float, random: Random) -> float | None:
        """The seconds until a message that was just received is delivered once more; None if it is not."""
        if not self.duplicate or random.random() >= self.duplicate:
            return None
        return random.uniform(0, visibility_seconds)
