"""`tarry check` of what is deployed: the facts read from AWS, all rules, and the findings without lines."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tarry.failed.usage import UsageError
from tarry.support.values import queue_arn
from tarry.tools.check.checking import CheckReport, findings_of
from tarry.tools.check.finding import At, Finding
from tarry.tools.check.gathering import Gatherer
from tarry.tools.check.gathering_deployed import Clients, DeployedGatherer
from tarry.tools.check.places import Places
from tarry.tools.check.rules.missing_permissions import missing_permissions
from tarry.tools.check.rules.receive_counts import receive_counts
from tarry.tools.template import read_template
from tarry.tools.template.finding import find_template
from tarry.tools.template.model import TemplateError


def check_deployed(
    clients: Clients, *, stack: str | None = None, queue: str | None = None, template: Path | None = None
) -> CheckReport:
    """Check a deployed stack, or a queue with its functions.

    Args:
        clients: The clients of AWS.
        stack: The name of the stack.
        queue: The name or URL of the queue, instead of a stack.
        template: The template of the stack, for the code of its functions; None for the one in this directory.

    Raises:
        UsageError: the stack or queue has no queue with a function.
        botocore.exceptions.ClientError: AWS refuses a request without which nothing can be checked.
    """
    gatherer = DeployedGatherer(clients, _code_of(template))
    if stack is not None:
        gatherer.add_stack(stack)
    elif queue is not None:
        gatherer.add_queue(queue)
    if not gatherer.mappings:
        checked = f"stack {stack}" if stack else f"queue {queue}"
        raise UsageError(f"{checked} has no queue that a function consumes")
    facts = gatherer.facts()
    findings = [*findings_of(facts), *_findings_of_code(gatherer)]
    unique = {(each.rule, each.text): each for each in findings}
    order = sorted(unique.values(), key=lambda each: (each.at or At("")).resource)
    return CheckReport(tuple(order), gatherer.unread(), len(facts.queues), facts.consumers)


def _code_of(template: Path | None) -> Gatherer | None:
    """Return the reader of the code of a template; None if there is none here."""
    try:
        path = template or find_template()
        return Gatherer(read_template(path, tolerant=True), Places(path))
    except (TemplateError, UsageError):
        if template is not None:
            raise
        return None


def _findings_of_code(gatherer: DeployedGatherer) -> Iterator[Finding]:
    """Yield the findings of the rules that need the code, and permissions by queue."""
    queues = gatherer.queues
    for mapping in gatherer.mappings:
        if mapping.function is None or mapping.function.code is None or mapping.queue not in queues:
            continue
        function, queue = mapping.function, queues[mapping.queue]
        consumer = mapping.function.code
        if mapping.batch_size is not None:
            found = receive_counts(function.name, consumer, queue, mapping.batch_size, _no_place)
            yield from (_without_place(each, queue.logical_id or queue.name) for each in found)
        dead_letters = queue_arn(queue.dead_letter_arn) if queue.dead_letter_arn else None
        steps = consumer.steps_for(gatherer.name_in_template(mapping.queue))
        of_template = gatherer.template_function(function)
        found = missing_permissions(of_template, queue_arn(queue.arn), dead_letters, steps, queues, _no_place)
        yield from (_without_place(each, function.name) for each in found)


def _no_place() -> tuple[Path, int]:
    return Path("deployed"), 0


def _without_place(finding: Finding, resource: str) -> Finding:
    """Return a finding without the place in a template that `_no_place` stands for."""
    text = re.sub(r" \(deployed:0\)", "", finding.text)
    return replace(finding, text=text, file=None, line=None, at=At(resource), changes=())
