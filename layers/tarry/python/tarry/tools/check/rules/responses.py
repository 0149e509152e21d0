"""Mappings for which Lambda ignores the list of failed messages."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedMapping
from tarry.tools.check.finding import Finding, SafeChange

IGNORED_RESPONSE = "E9010"


def ignored_response(mapping: CheckedMapping) -> Iterator[Finding]:
    """Find a mapping without partial responses to a function that lists the messages that failed."""
    function = mapping.function
    if function is None or mapping.reports_failures is not False or not function.lists_failures:
        return
    text = (
        f"Lambda ignores which messages {function.name} reports as failed, and deletes the whole batch: failed "
        f"messages are lost. Set in {mapping.name}:"
    )
    value = "[ReportBatchItemFailures]"
    at = mapping.at.below("FunctionResponseTypes")
    yield Finding(
        IGNORED_RESPONSE,
        (function.name,),
        text,
        f"FunctionResponseTypes: {value}",
        at=at,
        changes=(SafeChange(at, '["ReportBatchItemFailures"]'),),
    )
