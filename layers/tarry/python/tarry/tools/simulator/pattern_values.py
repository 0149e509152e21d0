"""Values of event patterns and of the documents they are matched with: JSON in which a number keeps its text."""

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any


class PatternError(Exception):
    """The pattern is invalid; the text says why."""


@dataclass(frozen=True)
class Number:
    """A JSON number as it was written: ``1``, ``1.0`` and ``1e0`` are different values, but the same number."""

    text: str

    @property
    def value(self) -> Decimal:
        """The number; infinite if its exponent is beyond all limits."""
        try:
            return Decimal(self.text)
        except InvalidOperation:
            return Decimal("Infinity")


Leaf = str | bool | Number | None


def parse(text: str) -> Any:
    """Parse JSON with numbers as `Number`. Raises `ValueError` for text that is not JSON."""
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def shown(value: Any) -> str:
    """Return a parsed value as JSON, for an error text."""
    text = json.dumps(value, default=lambda number: float(number.value), ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
