"""The mappings of a template: which of them run here, why the others do not, and their settings at Lambda."""

from collections.abc import Iterable, Mapping, Sequence

from tarry.failed.usage import UsageError
from tarry.tools.check.consumers import is_consumer
from tarry.tools.local.project import Note
from tarry.tools.simulator.errors import InvalidParameterValue
from tarry.tools.simulator.mapping_settings import MappingSettings
from tarry.tools.template import Template, TemplateMapping
from tarry.tools.template.code import is_elsewhere, missing_code
from tarry.tools.template.queues import with_foreign_queues
from tarry.tools.template.runtimes import is_node


def settings_of(mapping: TemplateMapping, template: Template) -> MappingSettings:
    """Return the settings of a mapping. Raises `InvalidParameterValue` for settings that Lambda refuses."""
    return MappingSettings(
        mapping.queue_arn,
        mapping.function,
        batch_size=mapping.batch_size,
        window_seconds=mapping.window_seconds,
        reports_failures=mapping.reports_failures,
        maximum_concurrency=mapping.maximum_concurrency,
        qualifier=mapping.qualifier,
        filters=mapping.filters,
        queue_visibility_seconds=with_foreign_queues(template)[mapping.queue].visibility_timeout_seconds,
        function_timeout_seconds=template.functions[mapping.function].timeout_seconds,
    )


def problem_of(mapping: TemplateMapping, template: Template, *, in_process: bool) -> str:
    """Return why a mapping cannot run here; an empty text if it can. ``in_process``: without processes of its own."""
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


def code_problem_of(mapping: TemplateMapping, template: Template, *, in_process: bool) -> str:
    """Return why the function of a mapping cannot run here; an empty text if it can."""
    function = template.functions.get(mapping.function)
    if function is None:
        return f"{mapping.logical_id}: {template.path} has no function {mapping.function}"
    if in_process and is_node(function.runtime):
        return (
            f"{function.logical_id} cannot run here: its runtime is {function.runtime}, and --skip-time runs only "
            "functions in Python; leave out --skip-time"
        )
    return missing_code(function)


def check_mappings(mappings: Iterable[TemplateMapping], template: Template, *, in_process: bool) -> None:
    """Raise `UsageError` if one of the mappings cannot run here."""
    for mapping in mappings:
        if problem := problem_of(mapping, template, in_process=in_process):
            raise UsageError(problem)


def with_code(
    mappings: Sequence[TemplateMapping], template: Template, counts: Mapping[str, int], note: Note, *, in_process: bool
) -> list[TemplateMapping]:
    """Return the mappings without those of functions that cannot run here; their queues are served.

    ``counts`` are the numbers of records of the event by queue, empty without an event.

    Raises:
        UsageError: no function is left for any record of the event, or the code of all functions is missing.
    """
    problems = {mapping: code_problem_of(mapping, template, in_process=in_process) for mapping in mappings}
    found = [mapping for mapping, problem in problems.items() if not problem]
    reasons = list(dict.fromkeys(filter(None, problems.values())))
    if reasons and not found and counts:
        raise UsageError("; ".join(reasons))
    known = [template.functions.get(mapping.function) for mapping in mappings]
    if mappings and not found and not any(function and is_elsewhere(function) for function in known):
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
