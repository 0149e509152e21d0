"""How messages are told of, in words and colours: in lines, in tables, in the summary of a run."""

import sys

from rich.text import Text

from tarry.local.show.story import LOST, Story, text_of
from tarry.outcome import State
from tarry.testing import Transition
from tarry.tooling.text import printable

STYLES = {
    State.READY: "dim",
    State.IN_FLIGHT: "cyan",
    State.WAITING_RETRY: "yellow",
    State.COMMITTED: "green",
    State.DEAD_LETTERED: "red",
    State.DISCARDED: "magenta",
    State.DEFERRED: "blue",
    State.RESENT: "blue",
    LOST: "bold white on red",
}


def note(text: str) -> None:
    """Guidance, on stderr."""
    if text:
        sys.stderr.write(printable(text, keep="\n\t") + "\n")


def name_of(story: Story) -> Text:
    """How a message is called in a line: its place in the event, the beginning of its id, its queue."""
    return Text(plain_name_of(story))


def plain_name_of(story: Story) -> str:
    """The same, in no colour."""
    number = "" if story.number is None else f"#{story.number}"
    return f"{number:>3} {printable(story.id[:8])} {printable(story.queue)}"


def words(step: Transition) -> Text:
    """A step in words, in its colour."""
    return Text(text_of(step), STYLES.get(step.state, ""))


def state_of(story: Story) -> Text:
    """The state of a message in words, in its colour."""
    if story.lost or not story.steps:
        return Text(story.state, STYLES[story.state])
    return words(story.steps[-1])


def because(why: str) -> Text:
    """Why a message is in its state, if something is known."""
    return Text(f"  ({printable(why)})" if why else "", "dim")
