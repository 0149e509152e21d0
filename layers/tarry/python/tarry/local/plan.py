"""What is asked for, checked against the template before anything is started."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tarry.local.functions.overrides import Overrides
from tarry.local.samples import Sample, read_samples
from tarry.simulator.errors import InvalidParameterValue
from tarry.simulator.mapping_settings import MappingSettings
from tarry.template import EventSourceMapping, Function, Template, read_template
from tarry.template.queues import with_foreign_queues
from tarry.tooling.errors import UsageError

Note = Callable[[str], None]
"""Tells the developer something beside the messages' states."""


@dataclass(frozen=True)
class Settings:
    """What to run, and how."""

    template: Path
    event: Path | None = None
    """An SQS event to play; without one the cloud runs until it is told to end."""
    functions: Sequence[str] = ()
    """The functions to run, by name or logical id; none for all that a queue feeds."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    overrides: Overrides = field(default_factory=Overrides)
    """Environment variables that go before the template's."""
    region: str = "us-east-1"
    endpoint_url: str | None = None
    """Another SQS than the embedded one."""
    port: int | None = None
    watch: bool = False
    give_up_seconds: float | None = None
    """How long at most; None for 300 seconds, or all the virtual time that any message could take."""
    verbose: bool = False
    skip_time: bool = False
    expected: Mapping[str, int] = field(default_factory=dict)
    """How many messages should be in each state in the end."""


@dataclass(frozen=True)
class Plan:
    """What a run needs of the template."""

    samples: Sequence[Sample]
    template: Template
    mappings: Sequence[EventSourceMapping]
    """Those that must run: of the functions named, of the queues of the event, else all."""

    @property
    def all_mappings(self) -> list[EventSourceMapping]:
        """Those that must run, and those that can."""
        return [each for each in self.template.mappings if each in self.mappings or _problem(each, self.template) == ""]


def make_plan(settings: Settings, note: Note) -> Plan:
    """Read the template and the event, and find who consumes what.

    Raises:
        UsageError: they do not fit together, or something in them cannot work here.
        TemplateError: the template cannot be read.
    """
    samples = read_samples(settings.event) if settings.event is not None else []
    template = read_template(settings.template, settings.parameters, settings.region)
    if settings.functions:
        template = _only(template, settings.functions)
    if settings.event is not None:
        mappings = _fed_by(samples, template, settings.event)
    else:
        mappings = _runnable(template, settings.functions, note)
    for mapping in mappings:
        if problem := _problem(mapping, template):
            raise UsageError(problem)
    if any(sample.receive_count > 1 for sample in samples):
        note("The event's receive counts are left out: SQS counts from 1 here.")
    return Plan(samples, template, mappings)


def function_named(name: str, template: Template) -> Function:
    """The function of this name or logical id.

    Raises:
        UsageError: the template has none.
    """
    for function in template.functions.values():
        if name in (function.name, function.logical_id):
            return function
    known = _listed(function.logical_id for function in template.functions.values())
    raise UsageError(f"{template.path} has no function {name}; it has {known}")


def _only(template: Template, names: Sequence[str]) -> Template:
    """The template with the mappings of these functions alone."""
    named = [function_named(name, template) for name in names]
    for function in named:
        if all(mapping.function != function.name for mapping in template.mappings):
            fed = _listed(template.functions[each.function].logical_id for each in template.mappings)
            raise UsageError(
                f"{template.path}: no queue feeds {function.logical_id}: it has no SQS event. "
                f"Queues feed {fed}. To call a function once: tarry invoke {function.logical_id} -e FILE"
            )
    wanted = {function.name for function in named}
    return replace(template, mappings=tuple(each for each in template.mappings if each.function in wanted))


def _fed_by(samples: Sequence[Sample], template: Template, event: Path) -> list[EventSourceMapping]:
    """The mappings of the event's queues."""
    consumed = {mapping.queue for mapping in template.mappings}
    for sample in samples:
        if sample.queue not in consumed:
            raise UsageError(
                f"{event}: record {sample.number} is for the queue {sample.queue}, which no function of "
                f"{template.path} consumes; consumed are: {_listed(sorted(consumed))}"
            )
    wanted = {sample.queue for sample in samples}
    return [mapping for mapping in template.mappings if mapping.queue in wanted]


def _runnable(template: Template, named: Collection[str], note: Note) -> list[EventSourceMapping]:
    """All mappings; those whose code is elsewhere are left out, unless they were named."""
    found = []
    for mapping in template.mappings:
        function = template.functions.get(mapping.function)
        if not named and (function is None or function.code is None):
            note(f"{mapping.logical_id} is left out: the code of {mapping.function} is not on this machine.")
        else:
            found.append(mapping)
    if not found:
        raise UsageError(
            f"{template.path}: no queue feeds a function here. A function gets one by an event of type SQS: "
            "Events: {Name: {Type: SQS, Properties: {Queue: !GetAtt Queue.Arn}}}"
        )
    return found


def _problem(mapping: EventSourceMapping, template: Template) -> str:
    """Why the mapping cannot run here; empty if it can."""
    function = template.functions.get(mapping.function)
    if function is None:
        return f"{mapping.logical_id}: {template.path} has no function {mapping.function}"
    if function.code is None or not function.handler:
        return f"{function.logical_id} has no code here: it needs a local CodeUri and a Handler"
    if not mapping.reports_failures:
        return (
            f"{template.path}: {mapping.logical_id} (queue {mapping.queue}) would have every failed message deleted; "
            f"add to its event: FunctionResponseTypes: [ReportBatchItemFailures]"
        )
    try:
        settings_of(mapping, template)
    except InvalidParameterValue as error:
        return f"{template.path}: AWS refuses {mapping.logical_id}: {error}"
    return ""


def settings_of(mapping: EventSourceMapping, template: Template) -> MappingSettings:
    """The mapping as the simulator takes it. Raises `InvalidParameterValue` for what Lambda refuses."""
    return MappingSettings(
        mapping.queue_arn,
        mapping.function,
        batch_size=mapping.batch_size,
        window_seconds=mapping.window_seconds,
        reports_failures=mapping.reports_failures,
        maximum_concurrency=mapping.maximum_concurrency,
        filters=mapping.filters,
        queue_visibility_seconds=with_foreign_queues(template)[mapping.queue].visibility_timeout_seconds,
        function_timeout_seconds=template.functions[mapping.function].timeout_seconds,
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"
