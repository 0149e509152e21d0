"""The permissions of a function, as statements with wildcards."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Statement:
    """A statement that allows actions on resources; both may contain wildcards.

    ``is_certain``: it is of the role, and its actions and resources are known. Otherwise it may allow less.
    """

    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    is_certain: bool = False

    def allows(self, action: str, queue: str) -> bool:
        return _any(self.actions, action) and _any(map(_name, self.resources), queue)


@dataclass(frozen=True)
class Permissions:
    """The statements that apply to a function. ``role`` is its role's logical id; None if SAM makes the role."""

    statements: tuple[Statement, ...]
    role: str | None = None

    def allow(self, action: str, queue: str) -> bool:
        """Whether a statement allows the action, such as ``sqs:SendMessage``, on the queue with this name."""
        return any(each.allows(action, queue) for each in self.statements)

    def certainly_allow(self, action: str, queue: str) -> bool:
        """Whether a statement of the role, without a condition, allows the action on the queue with this name."""
        return any(each.is_certain and each.allows(action, queue) for each in self.statements)

    def allow_somewhere(self, action: str) -> bool:
        """Whether a statement allows the action on any resource."""
        return any(_any(each.actions, action) for each in self.statements)


def _name(resource: str) -> str:
    """Return the pattern for the name of a queue. Region and account of the stack are not known, so they all match."""
    parts = resource.split(":", 5)
    return parts[5] if len(parts) == 6 else "*" if set(resource) & set("*?") else ""


def _any(patterns: Iterable[str], text: str) -> bool:
    return any(_pattern(each).fullmatch(text) for each in patterns)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.IGNORECASE)
