"""Decorators of Powertools that fail above a consumer."""

from collections.abc import Iterable, Iterator

from tarry.tools.check.consumer_code import Decorator
from tarry.tools.check.finding import Finding

RULE = "W9005"

_ON_A_FUNCTION = "Put @idempotent_function on a function that the handler calls."
UNFIT = {
    "idempotent_function": (
        "it takes its data as a keyword argument, which Lambda does not pass, so every invocation fails, and SQS moves "
        f"all messages to the dead-letter queue without a failure record. {_ON_A_FUNCTION}"
    ),
    "idempotent": f"it accepts only functions, so the import fails. {_ON_A_FUNCTION}",
    "event_source": (
        "it accepts only functions, so the import fails. Call the consumer from a function, and decorate that."
    ),
}
"""The consequence and the remedy, by name."""


def unfit_decorators(function: str, above: Iterable[Decorator]) -> Iterator[Finding]:
    """Find the decorators above the consumer of a function that make it fail; ``function`` is its logical id."""
    for each in above:
        if each.name in UNFIT:
            text = f"@{each.name} is above the consumer of {function} ({each.path}:{each.line}): {UNFIT[each.name]}"
            yield Finding(RULE, (function,), text, file=each.path, line=each.line)
