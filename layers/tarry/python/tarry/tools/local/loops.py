"""Functions that keep getting messages that result from their own: Lambda stops such a loop, unless it is allowed."""

from collections.abc import Collection, Mapping

from tarry.failed.queue_names import redrive_of
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.simulator.recursion import LONG_LOOP, MAX_INVOCATIONS


def stopped_text(function: str, queue: str) -> str:
    """Return a sentence about a loop that Lambda stops, with the remedy."""
    return (
        f"Lambda stops a recursive loop: {function} has been invoked {MAX_INVOCATIONS} times in one chain of messages, "
        f"which return to it through {queue}. If the loop ends by itself, set RecursiveLoop: Allow in the properties "
        f"of {function}."
    )


class RecursiveLoops:
    """A listener to a history that knows the recursive loops in it."""

    def __init__(self) -> None:
        self._attributes: dict[str, Mapping[str, str]] = {}
        self._stopped: dict[tuple[str, str], None] = {}
        """The function and the queue of each loop that Lambda has stopped."""
        self._endless: tuple[str, str] | None = None
        """The function and the queue of a loop that is allowed and does not end."""
        self._refused: dict[str, str] = {}
        """The queues of the messages that Lambda refuses to hand to their function, by delivery id."""

    def take(self, event: HistoryEvent) -> None:
        """Note the next event."""
        fields = event.fields
        match event.what:
            case "recursion_stopped":
                self._stopped[fields["function"], fields["queue"]] = None
                self._refused.update(dict.fromkeys(fields["delivery_ids"], fields["queue"]))
            case "recursion_allowed":
                self._endless = fields["function"], fields["queue"]
            case "queue_configured":
                self._attributes[fields["queue"]] = fields["attributes"]
            case "deleted" | "expired" | "purged" | "moved":
                self._refused.pop(fields["delivery_id"], None)

    @property
    def is_endless(self) -> bool:
        """Whether a loop that is allowed seems to go on for ever."""
        return self._endless is not None

    @property
    def stuck(self) -> Collection[str]:
        """The delivery ids of messages that no redrive policy moves, and that Lambda refuses on every receive."""
        return [each for each, queue in self._refused.items() if redrive_of(self._attributes.get(queue, {})) is None]

    def texts(self, *, is_cut: bool) -> list[str]:
        """Return a sentence for each loop; ``is_cut``: the run ended because a loop seems to go on for ever."""
        found = [stopped_text(*loop) for loop in self._stopped]
        queues = dict.fromkeys(self._refused[each] for each in self.stuck)
        found += [f"{queue} has no redrive policy, so the message that Lambda refuses stays in it." for queue in queues]
        if is_cut and self._endless is not None:
            function, queue = self._endless
            found.append(
                f"Stopped: {function} has been invoked {LONG_LOOP:,} times in one chain of messages, which return to "
                f"it through {queue}, and its RecursiveLoop: Allow sets no limit. To let the loop go on for a virtual "
                "time: --give-up SECONDS."
            )
        return found
