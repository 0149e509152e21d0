"""Hints about mappings that do what their author may not expect. They are played as AWS plays them."""

from collections.abc import Iterator, Sequence

from tarry.tools.simulator.filters import Filters
from tarry.tools.template import Template, TemplateMapping
from tarry.tools.template.queues import dead_letter_cycles, with_foreign_queues

MOST_NAMED = 5
"""The most mappings that one hint names."""


def hints(template: Template, mappings: Sequence[TemplateMapping], *, is_foreign: bool) -> Iterator[str]:
    """Yield the hints about the mappings that run. ``is_foreign``: the queues may exist elsewhere, with settings."""
    if silent := [mapping.logical_id for mapping in mappings if not mapping.reports_failures]:
        more = f" and {len(silent) - MOST_NAMED} more" if len(silent) > MOST_NAMED else ""
        names = f"{', '.join(silent[:MOST_NAMED])}{more}"
        yield f"Without ReportBatchItemFailures, so a batch succeeds or fails as a whole: {names}."
    consumed = {mapping.queue for mapping in template.mappings}
    for cycle in dead_letter_cycles(template.queues):
        ends = ", ".join(name for name in cycle if name not in consumed)
        yield (
            f"The dead-letter queues {' -> '.join([*cycle, cycle[0]])} form a cycle. A message that always fails ends "
            f"in a queue that no function consumes ({ends})."
        )
    foreign = [mapping.queue for mapping in mappings if mapping.queue not in template.queues]
    for name in dict.fromkeys(() if is_foreign else foreign):
        seconds = with_foreign_queues(template)[name].visibility_timeout_seconds
        yield f"{name} is not in the template, so its settings are unknown: here its visibility timeout is {seconds} s."
    for mapping in mappings:
        for warning in Filters(mapping.filters).warnings:
            yield f"{mapping.logical_id}: {warning}."
