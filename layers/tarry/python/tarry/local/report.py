"""How a run ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tarry.local.letters import Letter
from tarry.local.story import Story


@dataclass(frozen=True)
class Report:
    """What became of the messages of a run."""

    stories: list[Story] = field(default_factory=list)
    letters: Mapping[str, Letter] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False

    @property
    def lost(self) -> list[Story]:
        return [story for story in self.stories if story.is_lost]

    @property
    def waiting(self) -> list[Story]:
        """Those that did not settle in time."""
        return [story for story in self.stories if not (story.is_settled or story.is_lost)]

    @property
    def exit_code(self) -> int:
        """0 if all is well, 1 if something was lost or did not settle, 130 after Ctrl-C."""
        if self.interrupted:
            return 130
        return 1 if self.lost or self.waiting else 0
