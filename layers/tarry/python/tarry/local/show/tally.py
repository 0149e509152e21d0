"""What has become of each function's invocations, counted from the history."""

from dataclasses import dataclass

from tarry.local.show.log import report_text
from tarry.simulator.history import Event


@dataclass
class Tally:
    """One function's."""

    busy: int = 0
    invoked: int = 0
    failed: int = 0
    throttled: int = 0
    last: str = ""


class Tallies:
    """By the functions' names."""

    def __init__(self) -> None:
        self.by_function: dict[str, Tally] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no invocation is under way."""
        return not any(tally.busy for tally in self.by_function.values())

    def take(self, event: Event) -> None:
        """Something has happened."""
        if event.what not in ("invoked", "report", "throttled"):
            return
        tally = self.by_function.setdefault(event.fields["function"], Tally())
        match event.what:
            case "invoked":
                tally.invoked += 1
                tally.busy += 1
            case "report":
                tally.busy -= 1
                tally.failed += event.fields["kind"] != "returned"
                tally.last = report_text(event.fields)
            case "throttled":
                tally.throttled += 1
