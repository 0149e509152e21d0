"""The settings and the plan of a run, checked against the template before anything starts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tarry.failed.usage import UsageError
from tarry.tools.common.places import is_aws
from tarry.tools.local.functions.variables import Overrides
from tarry.tools.local.hints import hints
from tarry.tools.local.mappings import check_mappings, code_problem_of, note_shared_queues, problem_of, with_code
from tarry.tools.local.project import Note, note_builds, read_project, with_placeholders
from tarry.tools.local.routing import routed
from tarry.tools.local.samples import Sample, read_samples
from tarry.tools.local.seeding import SeedCall, stored_values
from tarry.tools.simulator.http.admission import LOCAL_ONLY, Admission
from tarry.tools.template import Template, TemplateFunction, TemplateMapping
from tarry.tools.template.finding import refuse_template
from tarry.tools.template.queues import with_foreign_queues


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run."""

    template: Path
    event: Path | None = None
    """The SQS event to send; None to run until interrupted."""
    functions: Sequence[str] = ()
    """The functions to run, by name or logical id; empty for all that consume a queue."""
    queues_only: bool = False
    """Serve the queues, and run no function."""
    queue: str | None = None
    """The queue for records of the event that name no queue with a function."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    config_env: str | None = None
    """The environment in the samconfig file with more parameters; None for ``default``."""
    strict_parameters: bool = False
    """Refuse a parameter without a value; otherwise it gets a placeholder."""
    overrides: Overrides = field(default_factory=Overrides)
    """Environment variables that override the template."""
    region: str | None = None
    """The region; None for that of the samconfig file, or the default."""
    endpoint_url: str | None = None
    """The endpoint of another SQS, to use instead of the embedded one."""
    port: int | None = None
    admission: Admission = LOCAL_ONLY
    """The callers whose requests are answered."""
    watch: bool = False
    give_up_seconds: float | None = None
    """The time limit; None for 300 seconds, or in virtual time for as long as any message could take."""
    verbose: bool = False
    skip_time: bool = False
    seed: Sequence[SeedCall] = ()
    """The AWS calls to make before the first message."""
    keep: Path | None = None
    """The file for the messages that are left at the end."""
    expected: Mapping[str, int] = field(default_factory=dict)
    """The expected number of messages in each final state."""

    @property
    def is_strict(self) -> bool:
        """Whether values that are made up are refused. At AWS, they could be the names of queues of others."""
        return self.strict_parameters or (self.endpoint_url is not None and is_aws(self.endpoint_url))


@dataclass(frozen=True)
class RunPlan:
    """The samples, the template, and the mappings of a run."""

    samples: Sequence[Sample]
    template: Template
    mappings: Sequence[TemplateMapping]
    """The required mappings: of the named functions, or of the queues in the event, or all."""

    queues_only: bool = False
    """Whether no function runs."""
    in_process: bool = False
    """Whether the functions run in this process, as with ``--skip-time``."""

    @property
    def all_mappings(self) -> list[TemplateMapping]:
        """The required mappings, and all others that can run."""
        if self.queues_only:
            return []
        return [
            each
            for each in self.template.mappings
            if each in self.mappings or problem_of(each, self.template, in_process=self.in_process) == ""
        ]


def make_plan(settings: RunSettings, note: Note) -> RunPlan:
    """Read the template and the event, and find the mappings to run.

    Raises:
        UsageError: the event and the template do not match, or a function cannot run here.
        TemplateError: the template cannot be read.
    """
    samples = read_samples(settings.event) if settings.event is not None else []
    template = read_project(
        settings.template,
        settings.parameters,
        settings.region,
        settings.config_env,
        note,
        stored=stored_values(settings.seed),
        strict=settings.is_strict,
    )
    if settings.queues_only:
        return _queues_alone(template)
    if settings.functions:
        template = _only(template, settings.functions)
    mappings = list(template.mappings)
    if settings.event is not None:
        samples = routed(samples, template, settings.queue, str(settings.event), note)
        mappings = [mapping for mapping in mappings if mapping.queue in {sample.queue for sample in samples}]
    elif not mappings:
        raise UsageError(
            f"{template.path}: no function has an SQS event. Add one to a function: "
            "Events: {Name: {Type: SQS, Properties: {Queue: !GetAtt Queue.Arn}}}. "
            "To serve the queues alone: --queues-only"
        )
    if not settings.functions:
        counts = Counter(sample.queue for sample in samples)
        mappings = with_code(mappings, template, counts, note, in_process=settings.skip_time)
    check_mappings(mappings, template, in_process=settings.skip_time)
    if any(sample.receive_count > 1 for sample in samples):
        note("The receive counts in the event are ignored: the embedded SQS starts at 1.")
    note_shared_queues(mappings, note)
    here = (each for each in template.mappings if not code_problem_of(each, template, in_process=settings.skip_time))
    consumers = dict.fromkeys(each.function for each in here)
    note_builds((template.functions[name] for name in consumers), note)
    if not settings.is_strict:
        template = with_placeholders(template, consumers, settings.overrides, note)
    plan = RunPlan(samples, template, mappings, in_process=settings.skip_time)
    for hint in hints(template, plan.all_mappings, is_foreign=settings.endpoint_url is not None):
        note(hint)
    return plan


def _queues_alone(template: Template) -> RunPlan:
    if not with_foreign_queues(template):
        raise UsageError(f"{template.path} has no queue for --queues-only: add a resource of the type AWS::SQS::Queue")
    return RunPlan([], template, [], queues_only=True)


def function_named(name: str, template: Template) -> TemplateFunction:
    """Return the function with this name or logical id.

    Raises:
        UsageError: the template has no such function.
    """
    refuse_template(name)
    for function in template.functions.values():
        if name in (function.name, function.logical_id):
            return function
    known = _listed(function.logical_id for function in template.functions.values())
    raise UsageError(f"{template.path} has no function {name}; its functions are {known}")


def _only(template: Template, names: Sequence[str]) -> Template:
    """Return the template with only the mappings of these functions."""
    named = [function_named(name, template) for name in names]
    for function in named:
        if all(mapping.function != function.name for mapping in template.mappings):
            consumers = _listed(template.functions[each.function].logical_id for each in template.mappings)
            raise UsageError(
                f"{template.path}: {function.logical_id} has no SQS event; functions with one are {consumers}. "
                f"To invoke it once: tarry invoke {function.logical_id} -e FILE"
            )
    wanted = {function.name for function in named}
    return replace(template, mappings=tuple(each for each in template.mappings if each.function in wanted))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "none"
