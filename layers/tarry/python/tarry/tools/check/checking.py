"""`tarry check` of a template: its facts, all rules, and the findings with their lines."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tarry.tools.check.facts import CheckedFunction, CheckedMapping, Facts
from tarry.tools.check.finding import Finding
from tarry.tools.check.gathering import Gatherer, Places
from tarry.tools.check.rules.code import old_runtime
from tarry.tools.check.rules.mappings import (
    ended_loop,
    ignored_response,
    low_reserved_concurrency,
    no_room,
    refused_batches,
    short_timeout,
)
from tarry.tools.check.rules.permissions import key_permissions, wide_permissions
from tarry.tools.check.rules.queues import (
    long_delays,
    no_dead_letters,
    no_last_step,
    short_visibility,
    unfit_dead_letters,
    unseen_dead_letters,
)
from tarry.tools.template import read_template


@dataclass(frozen=True)
class CheckReport:
    """The findings, in the order of their lines, and the reasons why parts were not checked."""

    findings: tuple[Finding, ...]
    skipped: tuple[str, ...] = ()
    queues: int = 0
    """The number of queues that were checked."""
    consumers: int = 0
    """The number of functions with a queue that were checked."""


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
    places = Places(path)
    gatherer = Gatherer(template, places)
    facts = gatherer.facts()
    findings = [*gatherer.code.at_any_python(), *findings_of(facts)]
    skipped = [*template.left_out, *(_macro(each) for each in template.checked.macros), *gatherer.unread()]
    found = sorted(_placed(findings, path, places), key=_order)
    return CheckReport(tuple(found), tuple(skipped), len(facts.queues), facts.consumers)


def findings_of(facts: Facts) -> Iterator[Finding]:
    """Yield the findings of all rules that decide on facts."""
    for mapping in facts.mappings:
        yield from ignored_response(mapping)
        queue = facts.queues.get(mapping.queue)
        yield from refused_batches(mapping, queue)
        if queue is not None:
            yield from short_visibility(mapping, queue)
            yield from no_dead_letters(mapping, queue, facts)
            yield from wide_permissions(mapping, queue)
            yield from key_permissions(mapping, queue)
            yield from long_delays(mapping, queue)
            yield from ended_loop(mapping, queue)
            yield from no_last_step(mapping, queue)
    for queue in facts.queues.values():
        yield from unfit_dead_letters(queue, facts)
        if facts.consumers_of(queue.name):
            yield from unseen_dead_letters(queue, facts)
    for function, mappings in _by_function(facts):
        yield from low_reserved_concurrency(function, mappings)
        yield from old_runtime(function)
        yield from short_timeout(function)
    yield from no_room(facts)


def _by_function(facts: Facts) -> Iterable[tuple[CheckedFunction, list[CheckedMapping]]]:
    found: dict[str, tuple[CheckedFunction, list[CheckedMapping]]] = {}
    for mapping in facts.mappings:
        if mapping.function is not None:
            found.setdefault(mapping.function.name, (mapping.function, []))[1].append(mapping)
    return found.values()


def _macro(name: str) -> str:
    return f"The transform {name} is not known here: resources that it makes or changes are not checked."


def _placed(findings: Iterable[Finding], path: Path, places: Places) -> Iterator[Finding]:
    """Yield the findings that are not ignored, each once, with its file and line."""
    seen = set()
    for each in findings:
        resources = [*((each.at.resource,) if each.at else ()), *each.functions]
        found = replace(each, file=path, line=places.line_of(each.at)) if each.at else each
        key = (found.rule, found.file, found.line, found.text)
        if key not in seen and not places.ignores(each.rule, resources):
            seen.add(key)
            yield found


def _order(finding: Finding) -> tuple[str, int, str]:
    return str(finding.file), finding.line or 0, finding.rule
