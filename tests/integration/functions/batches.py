"""Batches for a function, and what became of them."""

from types import ModuleType
from typing import Any

from tests.records import Context, event, failed
from tests.wire import Wire


def deliver(app: ModuleType, *records: dict[str, Any]) -> list[str]:
    """Run the handler on a batch; return the ids of the messages reported as failed."""
    return failed(app.handler(event(*records), Context()))


def dead(wire: Wire) -> list[tuple[str, str]]:
    """Return the reason and the text of each dead letter."""
    return [(each["failure"]["reason"], each["failure"]["message"]) for each in wire.envelopes()]
