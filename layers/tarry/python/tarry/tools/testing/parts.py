"""The parts of a run that can be left out to shrink a case: messages, occurrences of faults, random behavior of SQS."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from tarry.tools.simulator.sqs import Realism

Part = tuple[str | int, ...]
"""The kind of a part, in the plural, and its number or name: ``("messages", 3)``, ``("faults", 0, 2)``."""
MESSAGES, FAULTS, RANDOMNESS = "messages", "faults", "random behaviors"

RANDOM_BEHAVIOR = "reorder", "partial", "duplicate"
"""The names of the random behavior of SQS in `Realism`."""


@dataclass
class Parts:
    """The parts that a run has; with ``kept``, it has only those."""

    kept: Collection[Part] | None = None
    met: list[Part] = field(default_factory=list)
    """The parts that the run had, in the order of their occurrence."""

    def keep(self, *part: str | int) -> bool:
        """Return whether the run has a part that it comes to; note that it does."""
        if self.kept is not None and part not in self.kept:
            return False
        self.met.append(part)
        return True

    def realism(self, realism: Realism) -> Realism:
        """Return the realism without the random behavior that is left out."""
        without = [each for each in RANDOM_BEHAVIOR if getattr(realism, each) and not self.keep(RANDOMNESS, each)]
        return replace(realism, **dict.fromkeys(without, False)) if without else realism


class AllParts(Parts):
    """All parts of a run whose case is not being shrunk: none is left out, and none is noted."""

    def keep(self, *part: str | int) -> bool:
        return True
