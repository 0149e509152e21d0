"""Hints about mappings that do what their author may not expect. They are played as AWS plays them."""

from collections.abc import Iterator, Sequence

from tarry.simulator.filters import Filters
from tarry.template import Template, TemplateMapping
from tarry.template.queues import with_foreign_queues

MOST_NAMED = 5
"""The most mappings that one hint names."""


def hints(template: Template, mappings: Sequence[TemplateMapping], *, is_foreign: bool) -> Iterator[str]:
    """Yield the hints about the mappings that run. ``is_foreign``: the queues may exist elsewhere, with settings."""
    if silent := [mapping.logical_id for mapping in mappings if not mapping.reports_failures]:
        more = f" and {len(silent) - MOST_NAMED} more" if len(silent) > MOST_NAMED else ""
        yield (
            f"Without ReportBatchItemFailures: {', '.join(silent[:MOST_NAMED])}{more}. If the function returns, its "
            "whole batch is deleted, whatever it returns; if it raises, the whole batch comes back. With "
            "FunctionResponseTypes: [ReportBatchItemFailures] in the event, only the messages that it names come back."
        )
    foreign = [mapping.queue for mapping in mappings if mapping.queue not in template.queues]
    for name in dict.fromkeys(() if is_foreign else foreign):
        seconds = with_foreign_queues(template)[name].visibility_timeout_seconds
        yield f"{name} is not in the template, so its settings are unknown: here its visibility timeout is {seconds} s."
    for mapping in mappings:
        for warning in Filters(mapping.filters).warnings:
            yield f"{mapping.logical_id}: {warning}."
