"""How a run ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tarry.local.runs.letters import Letter
from tarry.local.show.story import Story, counts
from tarry.testing.checkers import Violation


@dataclass(frozen=True)
class Report:
    """What became of the messages of a run."""

    stories: list[Story] = field(default_factory=list)
    letters: Mapping[str, Letter] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False
    virtual_seconds: float | None = None
    """How long it took in virtual time; None in real time."""
    violations: Sequence[Violation] = ()
    expected: Mapping[str, int] = field(default_factory=dict)
    """How many messages should be in each state; what it does not name may be in any number."""

    @property
    def lost(self) -> list[Story]:
        return [story for story in self.stories if story.lost]

    @property
    def waiting(self) -> list[Story]:
        """Those that did not settle in time."""
        return [story for story in self.stories if not (story.is_settled or story.lost)]

    @property
    def missed(self) -> str:
        """How the numbers of messages by state differ from those that are expected; empty if they do not."""
        found = counts(self.stories)
        if all(found.get(state, 0) == number for state, number in self.expected.items()):
            return ""
        both = [
            ", ".join(f"{each.get(state, 0)} {state}" for state in self.expected) for each in (self.expected, found)
        ]
        return f"expected {both[0]}, got {both[1]}"

    @property
    def exit_code(self) -> int:
        """0 if all is well, 1 if something was lost, did not settle or is not as expected, 130 after Ctrl-C."""
        if self.interrupted:
            return 130
        return 1 if self.lost or self.waiting or self.violations or self.missed else 0
