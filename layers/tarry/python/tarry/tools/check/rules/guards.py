"""The outage guard of a template: the consumers that it names, and the permissions of its role."""

import json
from collections.abc import Iterator, Sequence

from tarry.guard.decision import unfit
from tarry.observe.metrics import NAMESPACE
from tarry.tools.check.facts import Facts, resource_of
from tarry.tools.check.finding import At, Finding, listed
from tarry.tools.check.rules.permissions import statement
from tarry.tools.template import TemplateFunction

OF_MAPPING = "GetEventSourceMapping UpdateEventSourceMapping ListTags TagResource UntagResource"
ON_MAPPING = [f"lambda:{each}" for each in OF_MAPPING.split()]
ON_QUEUE = ["sqs:GetQueueUrl", "sqs:GetQueueAttributes"]
ON_ALL = ["cloudwatch:GetMetricData", "cloudwatch:GetMetricStatistics", "lambda:ListEventSourceMappings"]
MAPPING_ARN = "arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:event-source-mapping:"


def unfit_guard(function: TemplateFunction, facts: Facts) -> Iterator[Finding]:
    """Find consumers that the guard cannot suspend, permissions that it lacks, and mappings that are not its own."""
    try:
        named = {each["mapping"] for each in json.loads(function.environment["GUARDED"])}
    except (KeyError, TypeError, ValueError):
        return  # another function, or one whose consumers are not known
    for text, snippet in (*_unfit(function, named, facts), *_permissions(function, named, facts)):
        at, whole = At(resource_of(function)), f"{function.logical_id} {text}"
        yield Finding("W9035", (function.logical_id,), whole, snippet, at=at)


def _unfit(function: TemplateFunction, named: set[str], facts: Facts) -> Iterator[tuple[str, str]]:
    if not function.environment.get(NAMESPACE) and NAMESPACE not in function.unresolved:
        text = f"has no {NAMESPACE}: without metrics it does nothing. Add to its environment variables:"
        yield text, f"{NAMESPACE}: !Ref AWS::StackName"
    for each in (each for each in facts.mappings if each.uuid in named):
        pollers, consumers = facts.template.checked.pollers, len(facts.consumers_of(each.queue))
        if why := unfit(each.queue, consumers, has_pollers=each.logical_id in pollers):
            yield f"cannot guard {facts.title_of(each.queue)}: {why}.", ""


def _permissions(function: TemplateFunction, named: set[str], facts: Facts) -> Iterator[tuple[str, str]]:
    permissions = function.permissions
    if permissions is None:
        return

    def missing(actions: Sequence[str], on: str, resource: str | None, arn: str) -> Iterator[tuple[str, str]]:
        if lacking := [each for each in actions if not permissions.allow(each, resource)]:
            yield f"lacks {listed(lacking)}{on}. Add to its permissions:", statement(lacking, arn, permissions.role)

    yield from missing(ON_ALL, "", None, '"*"')
    for each in facts.mappings:
        queue, name = facts.queues.get(each.queue), facts.title_of(each.queue)
        resource = f"event-source-mapping:{each.uuid}"
        if each.uuid in named:
            arn = f'!Sub "{MAPPING_ARN}${{{each.logical_id}}}"'
            yield from missing(ON_MAPPING, f" on the mapping of {name}", resource, arn)
            if queue is not None:
                yield from missing(ON_QUEUE, f" on {name}", each.queue, f"!GetAtt {resource_of(queue)}.Arn")
        elif permissions.allow(ON_MAPPING[1], resource, certainly=True):
            yield f"may change the mapping of {name}, which it does not guard. Allow it on those in GUARDED.", ""
