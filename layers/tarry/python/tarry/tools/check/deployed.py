"""The facts of what is deployed: of a stack, or of a queue with its functions, read from AWS.

Permissions are those of the policies of the roles, as in a template: conditions, boundaries and denials are not
considered, so that a finding is certain. The code is that of the template here, if it has the function.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from botocore.exceptions import ClientError

from tarry.failed.queue_names import queue_name, redrive_of, resources_of
from tarry.failed.usage import UsageError
from tarry.settle.planner import RECURSIVE_LOOP_VARIABLE
from tarry.sqs.limits import MAX_REQUEST_BYTES
from tarry.sqs.refusals import error_code, is_denied, is_no_queue
from tarry.support.values import queue_arn
from tarry.tools.check.checking import CheckReport, findings_of
from tarry.tools.check.facts import DEFAULT_RETENTION_SECONDS, CheckedFunction, CheckedMapping, CheckedQueue, Facts
from tarry.tools.check.finding import At, Finding
from tarry.tools.check.gathering import INVOCATIONS_OF_POLLER, MOST_INVOCATIONS, Gatherer, Places
from tarry.tools.check.rules.permissions import missing_permissions
from tarry.tools.check.rules.queues import receive_counts
from tarry.tools.template import Template, TemplateFunction, TemplateQueue, read_template
from tarry.tools.template.finding import find_template
from tarry.tools.template.model import (
    DEFAULT_MAX_RECEIVE_COUNT,
    DEFAULT_VISIBILITY_SECONDS,
    Permissions,
    TemplateAlarm,
    TemplateError,
)
from tarry.tools.template.policies import statements_of


class Clients(Protocol):
    """The clients of AWS services."""

    def client(self, service: str) -> Any:
        """Return the boto3 client of a service."""


class DeployedGatherer:
    """The facts that are read from AWS.

    Args:
        clients: The clients of AWS.
        code: The reader of the code of a template; None if there is none here.
    """

    def __init__(self, clients: Clients, code: Gatherer | None) -> None:
        self._clients = clients
        self._code = code
        self._ids: dict[str, str] = {}
        """The logical ids by the name of the queue or function."""
        self._queues: dict[str, tuple[CheckedQueue, TemplateQueue]] = {}
        self._functions: dict[str, tuple[CheckedFunction, TemplateFunction]] = {}
        self._mappings: dict[str, CheckedMapping] = {}
        self._skipped: dict[str, None] = {}

    def add_stack(self, stack: str) -> None:
        """Read the queues and functions of a stack, and the mappings of these functions."""
        by_type: dict[str, list[str]] = {}
        for each in resources_of(self._clients.client("cloudformation"), stack):
            name = each["PhysicalResourceId"]
            name = queue_name(name) if each["ResourceType"] == "AWS::SQS::Queue" else name
            self._ids[name] = each["LogicalResourceId"]
            by_type.setdefault(each["ResourceType"], []).append(name)
        for name in by_type.get("AWS::SQS::Queue", []):
            self._read_queue(name)
            self._read_mappings(EventSourceArn=self._arn(name))
        for name in by_type.get("AWS::Lambda::Function", []):
            self._read_mappings(FunctionName=name)

    def add_queue(self, queue: str) -> None:
        """Read a queue, its dead-letter queue, and the functions that consume them."""
        self._read_queue(queue_name(queue), is_needed=True)
        self._read_mappings(EventSourceArn=self._arn(queue_name(queue)))

    @property
    def mappings(self) -> tuple[CheckedMapping, ...]:
        """The mappings whose queues and functions were read."""
        return tuple(self._mappings.values())

    @property
    def queues(self) -> dict[str, TemplateQueue]:
        """The queues by name, as the rules that need the code know them."""
        return {name: queue for name, (_, queue) in self._queues.items()}

    def template_function(self, function: CheckedFunction) -> TemplateFunction:
        """Return a function of the facts as the rules that need the code know it."""
        return next(each for facts, each in self._functions.values() if facts is function)

    def name_in_template(self, queue: str) -> str:
        """Return the name that a queue has in the template here; its own name if it is not there."""
        queues = self._code.template.queues.values() if self._code else ()
        return next((each.name for each in queues if each.logical_id == self._ids.get(queue, "")), queue)

    def facts(self) -> Facts:
        """Return the facts that were read, and read the alarms."""
        alarms = self._alarms()
        return Facts(
            queues={name: facts for name, (facts, _) in self._queues.items()},
            mappings=self.mappings,
            alarms=tuple(alarms or ()),
            are_alarms_known=alarms is not None,
        )

    def unread(self) -> tuple[str, ...]:
        """Return why parts were not read."""
        return tuple(self._skipped)

    # queues

    def _arn(self, name: str) -> str:
        found = self._queues.get(name)
        return found[1].arn if found else ""

    def _read_queue(self, name: str, *, is_needed: bool = False) -> None:
        """Read a queue and its dead-letter queue, once."""
        if name in self._queues:
            return
        sqs = self._clients.client("sqs")
        try:
            url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
            attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        except ClientError as error:
            if is_needed or not (is_denied(error_code(error)) or is_no_queue(error_code(error))):
                raise
            self._skipped[f"The queue {name} cannot be read: {error}."] = None
            return
        redrive = redrive_of(attributes)
        logical_id = self._ids.get(name)
        count = redrive.max_receive_count if redrive else None
        facts = CheckedQueue(
            name=name,
            at=At(logical_id or name),
            logical_id=logical_id,
            visibility_seconds=int(attributes.get("VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS)),
            retention_seconds=int(attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS)),
            maximum_bytes=int(attributes.get("MaximumMessageSize", MAX_REQUEST_BYTES)),
            has_redrive=redrive is not None,
            dead_letters=redrive.target.name if redrive else None,
            max_receive_count=count,
        )
        queue = TemplateQueue(
            name,
            attributes["QueueArn"],
            logical_id,
            dead_letter_arn=redrive.target.text if redrive else None,
            max_receive_count=count or DEFAULT_MAX_RECEIVE_COUNT,
        )
        self._queues[name] = facts, queue
        if redrive is not None:
            self._read_queue(redrive.target.name)
            self._read_mappings(EventSourceArn=redrive.target.text)

    # mappings

    def _read_mappings(self, **selection: str) -> None:
        pages = self._clients.client("lambda").get_paginator("list_event_source_mappings").paginate(**selection)
        for each in (mapping for page in pages for mapping in page["EventSourceMappings"]):
            arn = queue_arn(each.get("EventSourceArn"))
            if not arn.name or each["UUID"] in self._mappings or each.get("State") in ("Disabled", "Disabling"):
                continue
            self._read_queue(arn.name)
            function = self._function(each["FunctionArn"])
            self._mappings[each["UUID"]] = CheckedMapping(
                name=f"the mapping of {arn.name} to {function.name}",
                at=At(self._ids.get(each["UUID"], function.name)),
                queue=arn.name,
                function=function,
                batch_size=each.get("BatchSize"),
                window_seconds=each.get("MaximumBatchingWindowInSeconds", 0),
                reports_failures="ReportBatchItemFailures" in (each.get("FunctionResponseTypes") or []),
                most_invocations=most_invocations(each, arn.is_fifo),
            )

    # functions

    def _function(self, arn: str) -> CheckedFunction:
        name = arn.rsplit(":function:", maxsplit=1)[-1].partition(":")[0]
        if name not in self._functions:
            self._functions[name] = self._read_function(name, arn)
        return self._functions[name][0]

    def _read_function(self, name: str, arn: str) -> tuple[CheckedFunction, TemplateFunction]:
        client = self._clients.client("lambda")
        config = client.get_function_configuration(FunctionName=arn)
        logical_id = self._ids.get(name)
        permissions = self._permissions(config.get("Role", ""))
        here = self._here(logical_id)
        written = self._code.function(here) if self._code and here else None
        loops = self._allowed(lambda: client.get_function_recursion_config(FunctionName=name).get("RecursiveLoop"))
        reserved = self._allowed(
            lambda: client.get_function_concurrency(FunctionName=name).get("ReservedConcurrentExecutions")
        )
        variables = (config.get("Environment") or {}).get("Variables") or {}
        facts = CheckedFunction(
            name=logical_id or name,
            at=At(logical_id or name),
            timeout_seconds=config.get("Timeout"),
            memory_mb=config.get("MemorySize"),
            reserved_concurrency=reserved,
            allows_loops=None if loops is None else loops == "Allow",
            tells_of_loops=variables.get(RECURSIVE_LOOP_VARIABLE) == "Allow",
            runtime=config.get("Runtime"),
            permissions=permissions,
            code=written.code if written else None,
            lists_failures=written.lists_failures if written else _has_layer_of_tarry(config),
            calls=written.calls if written else None,
            has_dead_letter_config=bool((config.get("DeadLetterConfig") or {}).get("TargetArn")),
        )
        made = TemplateFunction(logical_id or name, name, arn, None, config.get("Handler"), permissions=permissions)
        return facts, made

    def _here(self, logical_id: str | None) -> TemplateFunction | None:
        template: Template | None = self._code.template if self._code else None
        functions = template.functions.values() if template else ()
        return next((each for each in functions if each.logical_id == logical_id), None)

    def _allowed(self, request: Any) -> Any:
        """Return the answer of a request; None if the credentials do not allow it, or the endpoint does not know it."""
        try:
            return request()
        except ClientError as error:
            self._skipped[f"A request is refused, and the rules that need it are skipped: {error}."] = None
        except (NotImplementedError, AttributeError):
            pass
        return None

    def _permissions(self, role: str) -> Permissions | None:
        """Return the permissions of a role; None if not all its policies can be read."""
        name = role.rpartition("/")[2]
        documents = self._allowed(lambda: list(self._policies(name)))
        if documents is None:
            return None
        with suppress(KeyError, TypeError, ValueError):
            return Permissions(tuple(each for document in documents for each in statements_of(document)), name)
        return None

    def _policies(self, role: str) -> Iterator[Mapping[str, Any]]:
        iam = self._clients.client("iam")
        for page in iam.get_paginator("list_role_policies").paginate(RoleName=role):
            for name in page["PolicyNames"]:
                yield _document(iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"])
        for page in iam.get_paginator("list_attached_role_policies").paginate(RoleName=role):
            for each in page["AttachedPolicies"]:
                policy = iam.get_policy(PolicyArn=each["PolicyArn"])["Policy"]
                version = iam.get_policy_version(PolicyArn=each["PolicyArn"], VersionId=policy["DefaultVersionId"])
                yield _document(version["PolicyVersion"]["Document"])

    def _alarms(self) -> list[TemplateAlarm] | None:
        """Return the alarms on queues; None if they cannot be read."""

        def read() -> list[TemplateAlarm]:
            pages = (
                self._clients.client("cloudwatch").get_paginator("describe_alarms").paginate(AlarmTypes=["MetricAlarm"])
            )
            return [found for page in pages for each in page.get("MetricAlarms", []) for found in _alarms_of(each)]

        found: list[TemplateAlarm] | None = self._allowed(read)
        return found


def most_invocations(mapping: Mapping[str, Any], is_fifo: bool) -> int | None:
    """Return the most invocations that a mapping makes at once; None if that is not known, or on FIFO not limited."""
    if pollers := (mapping.get("ProvisionedPollerConfig") or {}).get("MaximumPollers"):
        most = _whole_number(pollers)
        return None if most is None else most * INVOCATIONS_OF_POLLER
    if limit := (mapping.get("ScalingConfig") or {}).get("MaximumConcurrency"):
        return _whole_number(limit)
    return None if is_fifo else MOST_INVOCATIONS


def _whole_number(value: Any) -> int | None:
    """Return a number that some endpoints give as text; None if it is not one."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _has_layer_of_tarry(config: Mapping[str, Any]) -> bool:
    """Whether a function has a layer whose name is ``tarry``, or ends with ``-tarry``."""
    names = (str(each.get("Arn")).split(":layer:")[-1].partition(":")[0] for each in config.get("Layers") or [])
    return any(name == "tarry" or name.endswith("-tarry") for name in names)


def _document(given: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(unquote(given)) if isinstance(given, str) else given
    return found


def _alarms_of(alarm: Mapping[str, Any]) -> Iterator[TemplateAlarm]:
    metrics = [alarm, *((each.get("MetricStat") or {}).get("Metric") or {} for each in alarm.get("Metrics") or [])]
    for each in metrics:
        if each.get("Namespace") == "AWS/SQS":
            dimensions = each.get("Dimensions") or []
            queue = next((one["Value"] for one in dimensions if one["Name"] == "QueueName"), None)
            yield TemplateAlarm(alarm["AlarmName"], each["MetricName"], queue)


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
