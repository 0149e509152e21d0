"""The settings and the plan of a run, with its mappings, checked against the template before anything starts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tarry.failed.usage import UsageError
from tarry.tools.check.consumers import is_consumer
from tarry.tools.common.places import is_aws
from tarry.tools.local.functions.code import Overrides
from tarry.tools.local.project import Note, note_builds, read_project, with_placeholders
from tarry.tools.local.samples import Sample, SeedCall, read_samples, stored_values
from tarry.tools.simulator.http.admission import LOCAL_ONLY, Admission
from tarry.tools.simulator.invocations import FunctionHost
from tarry.tools.simulator.lambda_invoke import InvokeTarget, UnknownFunction
from tarry.tools.simulator.mapping_settings import Filters, InvalidParameterValue, MappingSettings
from tarry.tools.template import Template, TemplateError, TemplateFunction, TemplateMapping
from tarry.tools.template.code import is_elsewhere, is_node, missing_code
from tarry.tools.template.finding import refuse_template
from tarry.tools.template.model import dead_letter_cycles, with_foreign_queues

Host = TypeVar("Host", bound=FunctionHost)


def settings_of(mapping: TemplateMapping, template: Template) -> MappingSettings:
    """Return the settings of a mapping. Raises `InvalidParameterValue` for settings that Lambda refuses."""
    queue, function = with_foreign_queues(template)[mapping.queue], template.functions[mapping.function]
    return MappingSettings(mapping, queue.visibility_timeout_seconds, function.timeout_seconds)


def code_problem_of(mapping: TemplateMapping, template: Template, *, in_process: bool) -> str:
    """Return why the function of a mapping cannot run here; an empty text if it can.

    ``in_process``: without a process of its own, as with ``--skip-time``.
    """
    function = template.functions.get(mapping.function)
    if function is None:
        return f"{mapping.logical_id}: {template.path} has no function {mapping.function}"
    if in_process and is_node(function.runtime):
        return (
            f"{function.logical_id} cannot run here: its runtime is {function.runtime}, and --skip-time runs only "
            "functions in Python; leave out --skip-time"
        )
    return missing_code(function)


def problem_of(mapping: TemplateMapping, template: Template, *, in_process: bool) -> str:
    """Return why a mapping cannot run here; an empty text if it can."""
    if problem := code_problem_of(mapping, template, in_process=in_process):
        return problem
    function = template.functions[mapping.function]
    if not mapping.reports_failures and is_consumer(function):
        return (
            f"{template.path}: {template.named(mapping)} (queue {mapping.queue}) lacks ReportBatchItemFailures, and "
            f"{function.handler} is a consumer of tarry, so Lambda would delete the messages that it reports as "
            f"failed; add to its event: FunctionResponseTypes: [ReportBatchItemFailures]"
        )
    try:
        settings_of(mapping, template)
    except InvalidParameterValue as error:
        return f"{template.path}: AWS refuses {template.named(mapping)}: {error}"
    return ""


def with_code(
    problems: Mapping[TemplateMapping, str], template: Template, counts: Mapping[str, int], note: Note
) -> list[TemplateMapping]:
    """Return the mappings without those of functions that cannot run here; their queues are served.

    ``problems`` are those of the code of each mapping, ``counts`` the numbers of records of the event by queue, empty
    without an event. Raises `UsageError` if no function is left for any record of the event, or the code of all
    functions is missing.
    """
    found = [mapping for mapping, problem in problems.items() if not problem]
    reasons = list(dict.fromkeys(filter(None, problems.values())))
    if reasons and not found and counts:
        raise UsageError("; ".join(reasons))
    known = [template.functions.get(mapping.function) for mapping in problems]
    if problems and not found and not any(function and is_elsewhere(function) for function in known):
        raise UsageError(
            f"{template.path}: no function can run here: {'; '.join(reasons)}. To serve the queues: --queues-only"
        )
    served = {mapping.queue for mapping in found}
    for mapping, problem in problems.items():
        if problem:
            why = problem.removeprefix(mapping.function).removeprefix(" cannot run here").removeprefix(": ")
            left = 0 if mapping.queue in served else counts.get(mapping.queue, 0)
            stays = f". {left} record{'s'[: left != 1]} of the event stay{'s'[: left == 1]} in it" if left else ""
            note(f"{mapping.queue} is served, but {mapping.function} is not run here: {why}{stays}")
    return found


def note_shared_queues(mappings: Iterable[TemplateMapping], note: Note) -> None:
    """Note which queues feed several functions."""
    consumers: dict[str, list[str]] = {}
    for mapping in mappings:
        consumers.setdefault(mapping.queue, []).append(mapping.function)
    for queue, functions in consumers.items():
        if len(functions) > 1:
            note(f"{queue} feeds {' and '.join(functions)}: each message goes to one of them, as on AWS.")


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


GROUP = "sample"
"""The message group of a record that has none, if its queue was chosen here."""


def routed(
    samples: Sequence[Sample], template: Template, queue: str | None, event: str, note: Callable[[str], None]
) -> list[Sample]:
    """Return the records with the queue that each is sent to.

    A record stays with the queue it names, by name or by logical id, if a function consumes it. All other records go to
    the given queue, or to the only consumed one.

    ``queue`` is by name or logical id, ``event`` the name of the event, for errors; ``note`` gets a line for each queue
    that is replaced. Raises `UsageError` if no function consumes the given queue, or it is not clear which is meant.
    """
    consumed = dict.fromkeys(mapping.queue for mapping in template.mappings)
    names = {each.logical_id: each.name for each in template.queues.values() if each.name in consumed}
    chosen = names.get(queue, queue) if queue is not None else next(iter(consumed)) if len(consumed) == 1 else None
    if queue is not None and chosen not in consumed:
        raise UsageError(f"no function in {template.path} consumes {queue} (--queue); {_choices(consumed)}")
    found: list[Sample] = []
    moved: dict[str, list[int]] = {}
    for sample in samples:
        own = names.get(sample.queue, sample.queue)
        if own in consumed:
            found.append(replace(sample, queue=own))
            continue
        if chosen is None:
            why = f"is for queue {sample.queue}, which no function in {template.path} consumes"
            raise UsageError(
                f"{event}: record {sample.number} {why if sample.queue else 'names no queue'}: name the queue to send "
                f"it to (--queue NAME); {_choices(consumed)}"
            )
        moved.setdefault(sample.queue, []).append(sample.number)
        group = sample.group_id or (GROUP if chosen.endswith(".fifo") else None)
        found.append(replace(sample, queue=chosen, group_id=group))
    for name, numbers in moved.items():
        which = f"record {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} records"
        note(
            f"Sending {which} to {chosen}: " + (f"no function here consumes {name}." if name else "no queue is named.")
        )
    return found


def _choices(consumed: Iterable[str]) -> str:
    return f"queues with a function: {', '.join(sorted(consumed)) or 'none'}"


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run."""

    template: Path
    event: Path | None = None
    """The SQS event to send; None to run until interrupted."""
    functions: Sequence[str] = ()
    """The functions to run, by name or logical id; empty for all that consume a queue."""
    queues_only: bool = False
    queue: str | None = None
    """The queue for records of the event that name no queue with a function."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    config_env: str | None = None
    """The environment in the samconfig file with more parameters; None for ``default``."""
    strict_parameters: bool = False
    """Refuse a parameter without a value; otherwise it gets a placeholder."""
    overrides: Overrides = field(default_factory=Overrides)
    region: str | None = None
    """The region; None for that of the samconfig file, or the default."""
    endpoint_url: str | None = None
    """The endpoint of another SQS, to use instead of the embedded one."""
    port: int | None = None
    admission: Admission = LOCAL_ONLY
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
    mappings: Sequence[TemplateMapping] = ()
    """The required mappings: of the named functions, or of the queues in the event, or all."""
    all_mappings: Sequence[TemplateMapping] = ()
    """The required mappings, and all others that can run."""

    @property
    def functions(self) -> list[TemplateFunction]:
        """The functions of all mappings."""
        return [self.template.functions[name] for name in dict.fromkeys(each.function for each in self.all_mappings)]


def make_plan(settings: RunSettings, note: Note) -> RunPlan:
    """Read the template and the event, and find the mappings to run.

    Raises `UsageError` if the event and the template do not match, or a function cannot run here, `TemplateError` if
    the template cannot be read.
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
        if why := template.unresolved_queues:
            raise UsageError(f"{template.path}: {why}")
        raise UsageError(
            f"{template.path}: no function has an SQS event. Add one to a function: "
            "Events: {Name: {Type: SQS, Properties: {Queue: !GetAtt Queue.Arn}}}. "
            "To serve the queues alone: --queues-only"
        )
    return _with_functions(samples, template, mappings, settings, note)


def _queues_alone(template: Template) -> RunPlan:
    if not with_foreign_queues(template):
        raise UsageError(f"{template.path} has no queue for --queues-only: add a resource of the type AWS::SQS::Queue")
    return RunPlan([], template)


def _with_functions(
    samples: Sequence[Sample],
    template: Template,
    mappings: Sequence[TemplateMapping],
    settings: RunSettings,
    note: Note,
) -> RunPlan:
    """Return the plan with those of the wanted ``mappings`` whose functions can run here."""
    problems = {each: code_problem_of(each, template, in_process=settings.skip_time) for each in template.mappings}
    if not settings.functions:
        counts = Counter(sample.queue for sample in samples)
        mappings = with_code({each: problems[each] for each in mappings}, template, counts, note)
    for mapping in mappings:
        if problem := problem_of(mapping, template, in_process=settings.skip_time):
            raise UsageError(problem)
    if any(sample.receive_count > 1 for sample in samples):
        note("The receive counts in the event are ignored: the embedded SQS starts at 1.")
    note_shared_queues(mappings, note)
    here = [each for each in template.mappings if not problems[each]]
    consumers = dict.fromkeys(each.function for each in here)
    note_builds((template.functions[name] for name in consumers), note)
    if not settings.is_strict:
        template = with_placeholders(template, consumers, settings.overrides, note)
    in_process = settings.skip_time
    running = [each for each in here if each in mappings or not problem_of(each, template, in_process=in_process)]
    for hint in hints(template, running, is_foreign=settings.endpoint_url is not None):
        note(hint)
    return RunPlan(samples, template, mappings, running)


def function_named(name: str, template: Template) -> TemplateFunction:
    """Return the function with this name or logical id. Raises `UsageError` if the template has no such function."""
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


def invokable(
    name: str,
    template: Template,
    settings: RunSettings,
    running: dict[str, Host],
    make: Callable[[TemplateFunction], Host],
    note: Note,
) -> InvokeTarget:
    """Return the function with this name, for code that invokes it; ``running`` are those that were made already.

    Raises `UnknownFunction`.
    """
    function = template.functions.get(name)
    if function is None:
        raise UnknownFunction(f"Function not found: the template has no function {name}")
    if name not in running:
        if problem := missing_code(function):
            raise UnknownFunction(f"{name} is not run here: {problem}")
        if not settings.is_strict:  # the plan has only the placeholders of consumers
            function = with_placeholders(template, [name], settings.overrides, note).functions[name]
        try:
            running[name] = make(function)
        except (UsageError, TemplateError) as error:
            raise UnknownFunction(f"{name} is not run here: {error}") from error
    return InvokeTarget(running[name], function.arn, function.asynchronous)
