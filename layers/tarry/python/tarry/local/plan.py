"""What a run is asked to do, checked before anything is started."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tarry.local.errors import UsageError
from tarry.local.samples import Sample, read_samples
from tarry.template import EventSourceMapping, Template, read_template

Note = Callable[[str], None]
"""Tells the developer something beside the messages' states."""


@dataclass(frozen=True)
class Settings:
    """What to run, and how."""

    event: Path
    template: Path
    parameters: Mapping[str, str] = field(default_factory=dict)
    region: str = "us-east-1"
    give_up_seconds: float | None = None
    """How long at most; None for 300 seconds, or all the virtual time that any message could take."""
    verbose: bool = False
    skip_time: bool = False
    expected: Mapping[str, int] = field(default_factory=dict)
    """How many messages should be in each state in the end."""


@dataclass(frozen=True)
class Plan:
    """What a run needs of the template: checked before anything is started."""

    samples: list[Sample]
    template: Template
    mappings: list[EventSourceMapping]


def make_plan(settings: Settings, note: Note) -> Plan:
    """Read the event and the template, and find who consumes what.

    Raises:
        UsageError: they do not fit together.
        TemplateError: the template cannot be read.
    """
    samples = read_samples(settings.event)
    template = read_template(settings.template, settings.parameters, settings.region)
    consumed = {mapping.queue for mapping in template.mappings}
    for sample in samples:
        if sample.queue not in consumed:
            names = ", ".join(sorted(consumed)) or "none"
            raise UsageError(
                f"{settings.event}: record {sample.number} is for the queue {sample.queue}, which no function of "
                f"{settings.template} consumes; consumed are: {names}"
            )
    wanted = {sample.queue for sample in samples}
    mappings = [mapping for mapping in template.mappings if mapping.queue in wanted]
    for mapping in mappings:
        _check(mapping, template)
        if mapping.filters and not settings.skip_time:
            note(f"The filters of {mapping.logical_id} are not applied here.")
    if any(sample.receive_count > 1 for sample in samples):
        note("The event's receive counts are left out: SQS counts from 1 here.")
    return Plan(samples, template, mappings)


def _check(mapping: EventSourceMapping, template: Template) -> None:
    function = template.functions.get(mapping.function)
    if function is None:
        raise UsageError(f"{mapping.logical_id}: {template.path} has no function {mapping.function}")
    if function.code is None or not function.handler:
        raise UsageError(f"{function.logical_id} has no code here: it needs a local CodeUri and a Handler")
    if not mapping.reports_failures:
        raise UsageError(
            f"{template.path}: {mapping.logical_id} (queue {mapping.queue}) would have every failed message deleted; "
            f"add to its event: FunctionResponseTypes: [ReportBatchItemFailures]"
        )
