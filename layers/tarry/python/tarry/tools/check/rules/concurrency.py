"""Reserved concurrency below what the event pollers of a function use."""

from collections.abc import Iterator, Sequence

from tarry.tools.check.facts import CheckedFunction, CheckedMapping
from tarry.tools.check.finding import Finding

LOW_RESERVED = "W9031"
FEWEST_LIMIT = 2
"""The lowest ``MaximumConcurrency`` that Lambda accepts."""


def low_reserved_concurrency(function: CheckedFunction, mappings: Sequence[CheckedMapping]) -> Iterator[Finding]:
    """Compare the reserved concurrency of a function with the invocations that all its mappings make at once."""
    reserved = function.reserved_concurrency
    known = [each.most_invocations for each in mappings if each.most_invocations is not None]
    if not reserved or len(known) < len(mappings) or sum(known) <= reserved:
        return  # 0 switches a function off
    share = reserved // len(mappings)
    text = (
        f"{function.name} reserves a concurrency of {reserved}, and its queues make up to {sum(known):,} invocations "
        "at once: Lambda throttles the others, and each uses up a receive of its messages. "
    )
    if share >= FEWEST_LIMIT:
        text, snippet = f"{text}Set for each queue:", f"ScalingConfig: {{MaximumConcurrency: {share}}}"
    else:
        needed = FEWEST_LIMIT * len(mappings)
        snippet = f"ReservedConcurrentExecutions: {needed}"
        text = f"{text}Limit each queue to a MaximumConcurrency of 2, and set:"
    yield Finding(LOW_RESERVED, (function.name,), text, snippet, at=function.at.below("ReservedConcurrentExecutions"))
