"""`tarry check` of a template: its facts, all rules, and the findings with their lines."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tarry.tools.check.facts import Facts, version_of
from tarry.tools.check.finding import Finding, Places
from tarry.tools.check.rules import code, guards, mappings, permissions, queues
from tarry.tools.check.start import at_any_python
from tarry.tools.template import read_template
from tarry.tools.template.code import has_handler, import_path


@dataclass(frozen=True)
class CheckReport:
    """The findings, in the order of their lines, and the reasons why parts were not checked."""

    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = ()
    queues: int = 0
    consumers: int = 0
    """The number of functions with a queue."""


def check_template(
    path: Path, parameters: Mapping[str, str] | None = None, configured: Mapping[str, str] | None = None
) -> CheckReport:
    """Check a template and the code of its functions, which is read but not run.

    Args:
        path: The template file: SAM, CloudFormation, or of the CDK.
        parameters: Values of its parameters.
        configured: Values with precedence over its defaults; None for those of the project's samconfig file.

    Raises:
        TemplateError: the template cannot be read.
    """
    template = read_template(path, parameters, configured=configured, tolerant=True)
    facts = Facts(template)
    findings = [*at_any_python(facts), *findings_of(facts), *code.no_room(facts)]
    not_known = "The transform {} is not known here: resources that it makes or changes are not checked."
    skipped = [*template.left_out, *map(not_known.format, template.checked.macros), *_unread(facts)]
    found = sorted(_placed(findings, path, facts.places), key=lambda each: (str(each.file), each.line or 0, each.rule))
    return CheckReport(tuple(found), tuple(skipped), len(facts.queues), len(facts.functions))


def findings_of(facts: Facts) -> Iterator[Finding]:
    """Yield the findings of all rules that need no code, or the consumer in it alone."""
    for mapping in facts.mappings:
        queue, function = facts.queues.get(mapping.queue), facts.functions.get(mapping.function)
        yield from mappings.refused_batches(mapping, queue, function, facts)
        if queue is not None:
            yield from queues.no_dead_letters(queue, function, facts)
        if function is not None:
            yield from mappings.ignored_response(mapping, function, facts)
        if queue is not None and function is not None:
            yield from queues.short_visibility(mapping, queue, function, facts)
            yield from permissions.wide_permissions(queue, function, facts)
            yield from permissions.key_permissions(queue, function, facts)
            yield from queues.long_delays(mapping, queue, function, facts)
            yield from mappings.ended_loop(queue, function, facts)
            yield from queues.no_last_step(queue, function, facts)
    for queue in facts.queues.values():
        yield from queues.unfit_dead_letters(queue, facts)
        if facts.consumers_of(queue.name):
            yield from queues.unseen_dead_letters(queue, facts)
    for function in facts.functions.values():
        yield from mappings.low_reserved_concurrency(function, facts)
        yield from code.old_runtime(function, facts)
        yield from mappings.short_timeout(function, facts)
    for function in facts.template.functions.values():
        yield from guards.unfit_guard(function, facts)


def _unread(facts: Facts) -> Iterator[str]:
    """Yield why the code of functions cannot be read."""
    for each in facts.functions.values():
        if version_of(each.runtime) is None:
            continue
        if each.code is None:
            why = f"The code of {each.logical_id} is not on this machine"
        elif not any(has_handler(folder, each.handler, each.runtime) for folder in import_path(each)):
            why = f"The handler {each.handler} of {each.logical_id} is not in {each.code}"
        else:
            sources, module = facts.code(each)
            why = sources.why_not_read(module)
        if why:
            yield f"{why}. The rules that need the code of {each.logical_id} are skipped."


def _placed(findings: Iterable[Finding], path: Path, places: Places) -> Iterator[Finding]:
    """Yield the findings that are not ignored, each once, with its file and line."""
    seen = set()  # several mappings of a queue, or of a function, may give the same finding
    for each in findings:
        resources = [*((each.at.resource,) if each.at else ()), *each.functions]
        found = replace(each, file=path, line=places.line_of(each.at)) if each.at else each
        key = (found.rule, found.file, found.line, found.text)
        if key not in seen and not places.ignores(each.rule, resources):
            seen.add(key)
            yield found
