"""Warnings about failures that a function reports, but its event source mapping ignores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

REPORTING = "FunctionResponseTypes: [ReportBatchItemFailures]"


class IgnoredFailures:
    """A reader of the answers of functions that warns once about each mapping."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def text(self, answer: Mapping[str, Any]) -> str:
        """Return a warning about an answer; empty if it has no ignored failures, or its mapping was warned about."""
        mapping = answer.get("function", ""), answer.get("queue", "")
        if not (ignored := answer.get("ignored")) or mapping in self._warned:
            return ""
        self._warned.add(mapping)
        messages = f"{len(ignored)} message{'s'[: len(ignored) != 1]}"
        return (
            f"{mapping[0]} returned batchItemFailures with {messages} of {mapping[1]}, but the mapping lacks "
            f"{REPORTING}: Lambda ignores the failures and deletes the whole batch."
        )
