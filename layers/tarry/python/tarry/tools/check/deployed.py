"""The facts of what is deployed: of a stack, or of a queue with its functions, read from AWS.

Permissions are those of the policies of the roles, as in a template: conditions, boundaries and denials are not
considered, so that a finding is certain. The code is that of the template here, if it has the function.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from botocore.exceptions import ClientError

from tarry.failed.queue_names import listed, queue_name, redrive_of, resources_of
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, is_denied, is_no_queue
from tarry.support.values import queue_arn
from tarry.tools.check.checking import CheckReport, findings_of
from tarry.tools.check.consumers import Step
from tarry.tools.check.facts import INVOCATIONS_OF_POLLER, PROPERTIES, Facts
from tarry.tools.check.finding import At
from tarry.tools.check.start import findings_of_code
from tarry.tools.common.audit import Account
from tarry.tools.template import (
    Template,
    TemplateError,
    TemplateFunction,
    TemplateMapping,
    TemplateQueue,
    read_template,
)
from tarry.tools.template.finding import find_template
from tarry.tools.template.model import Checked, Permissions, TemplateAsync, TemplateLayer
from tarry.tools.template.policies import statements_of
from tarry.tools.template.resources import mapping_of, name_and_qualifier
from tarry.tools.template.values import alarms_of


class DeployedFacts(Facts):
    """A stack or a queue as it is deployed, with the code of the template here. Its places have no lines."""

    def __init__(self, deployed: Template, ids: Mapping[str, str], here: Template | None) -> None:
        super().__init__(deployed)
        self._ids = ids
        self._here = here

    def name_of(self, mapping: TemplateMapping) -> str:
        return f"the mapping of {mapping.queue} to {self.functions[mapping.function].logical_id}"

    def at_mapping(self, mapping: TemplateMapping, *keys: str) -> At:
        function = self.functions[mapping.function]
        return At(self._ids.get(mapping.logical_id, function.logical_id), (PROPERTIES, *keys))

    def where(self, part: TemplateQueue | TemplateFunction) -> str:
        return ""

    def steps(self, function: TemplateFunction, queue: str) -> tuple[Step, ...]:
        """Return the steps for a queue by the name that it has in the template here; its own if it is not there."""
        queues = self._here.queues.values() if self._here else ()
        logical_id = self._ids.get(queue, "")
        return super().steps(function, next((each.name for each in queues if each.logical_id == logical_id), queue))

    def uses(self, function: TemplateFunction) -> frozenset[str]:
        return frozenset()  # the code of the template here may be another than that which is deployed

    def lists_failures(self, function: TemplateFunction) -> bool:
        if function.code is not None:
            return super().lists_failures(function)
        names = ((each.arn or "").split(":layer:")[-1].partition(":")[0] for each in function.all_layers)
        return any(name == "tarry" or name.endswith("-tarry") for name in names)


class DeployedGatherer:
    """The facts that are read from AWS. ``here`` is the template with the code, if there is one."""

    def __init__(self, clients: Account, here: Template | None) -> None:
        self._clients = clients
        self._here = here
        self._ids: dict[str, str] = {}
        """The logical ids by the name of the queue or function, or the UUID of the mapping."""
        self._queues: dict[str, TemplateQueue] = {}
        self._functions: dict[str, TemplateFunction] = {}
        self._mappings: dict[str, TemplateMapping] = {}
        self._unknown: set[str] = set()
        self.skipped: dict[str, None] = {}
        """Why parts were not read."""

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

    def facts(self) -> DeployedFacts:
        """Return the facts that were read, and read the alarms."""
        client = self._clients.client("cloudwatch")
        read = self._allowed(lambda: [*listed(client, "describe_alarms", "MetricAlarms", AlarmTypes=["MetricAlarm"])])
        alarms = tuple(found for each in read or () for found in alarms_of(each["AlarmName"], each))
        checked = Checked(alarms, read is not None, unknown=frozenset(self._unknown))
        mappings = tuple(self._mappings.values())
        template = Template(Path(), "", self._queues, self._functions, mappings, {}, checked=checked)
        return DeployedFacts(template, self._ids, self._here)

    # queues

    def _arn(self, name: str) -> str:
        return self._queues[name].arn if name in self._queues else ""

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
            self.skipped[f"The queue {name} cannot be read: {error}."] = None
            return
        queue = TemplateQueue(name, attributes["QueueArn"], self._ids.get(name), attributes)
        if (redrive := redrive_of(attributes)) is not None:
            receives = redrive.max_receive_count or TemplateQueue.max_receive_count
            queue = replace(queue, dead_letter_arn=redrive.target.text, max_receive_count=receives)
        self._queues[name] = queue
        if redrive is not None:
            self._read_queue(redrive.target.name)
            self._read_mappings(EventSourceArn=redrive.target.text)

    # mappings

    def _read_mappings(self, **selection: str) -> None:
        client = self._clients.client("lambda")
        for each in listed(client, "list_event_source_mappings", "EventSourceMappings", **selection):
            arn = queue_arn(each.get("EventSourceArn"))
            if not arn.name or each["UUID"] in self._mappings or each.get("State") in ("Disabled", "Disabling"):
                continue
            self._read_queue(arn.name)
            uuid, limit = each["UUID"], None
            try:
                limit = limit_of(each)
            except (TypeError, ValueError):
                self._unknown.add(f"{uuid}.ScalingConfig")
            self._mappings[uuid] = mapping_of(uuid, arn.text, each["FunctionArn"], each, limit)
            self._read_function(each["FunctionArn"])

    # functions

    def _read_function(self, arn: str) -> None:
        name, _ = name_and_qualifier(arn)
        if name in self._functions:
            return
        client = self._clients.client("lambda")
        config = client.get_function_configuration(FunctionName=arn)
        logical_id = self._ids.get(name, name)
        permissions = self._permissions(config.get("Role", "").rpartition("/")[2])
        loops = self._allowed(lambda: client.get_function_recursion_config(FunctionName=name).get("RecursiveLoop"))
        if loops is None:
            self._unknown.add(f"{logical_id}.RecursiveLoop")
        layers = tuple(TemplateLayer(arn=str(each.get("Arn"))) for each in config.get("Layers") or [])
        unread = TemplateFunction(logical_id, name, arn, None, config.get("Handler"), all_layers=layers)
        functions = self._here.functions.values() if self._here and name in self._ids else ()
        self._functions[name] = replace(
            next((each for each in functions if each.logical_id == logical_id), unread),
            name=name,
            timeout_seconds=config.get("Timeout", TemplateFunction.timeout_seconds),
            memory_mb=config.get("MemorySize", TemplateFunction.memory_mb),
            reserved_concurrency=self._allowed(
                lambda: client.get_function_concurrency(FunctionName=name).get("ReservedConcurrentExecutions")
            ),
            recursive_loop="Allow" if loops == "Allow" else "Terminate",
            environment=(config.get("Environment") or {}).get("Variables") or {},
            unresolved={},
            runtime=config.get("Runtime"),
            permissions=permissions,
            asynchronous=TemplateAsync(dead_letter_arn=(config.get("DeadLetterConfig") or {}).get("TargetArn") or None),
        )

    def _allowed(self, request: Any) -> Any:
        """Return the answer of a request; None if the credentials do not allow it, or the endpoint does not know it."""
        try:
            return request()
        except ClientError as error:
            self.skipped[f"A request is refused, and the rules that need it are skipped: {error}."] = None
        except (NotImplementedError, AttributeError):
            pass
        return None

    def _permissions(self, role: str) -> Permissions | None:
        """Return the permissions of a role; None if not all its policies can be read."""
        documents = self._allowed(lambda: self._policies(role))
        with suppress(KeyError, TypeError, ValueError):  # TypeError: they are not allowed, or not documents
            return Permissions(tuple(each for document in documents for each in statements_of(document)), role)
        return None

    def _policies(self, role: str) -> list[Any]:
        iam = self._clients.client("iam")
        documents = [
            iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"]
            for name in listed(iam, "list_role_policies", "PolicyNames", RoleName=role)
        ]
        for each in listed(iam, "list_attached_role_policies", "AttachedPolicies", RoleName=role):
            policy = iam.get_policy(PolicyArn=each["PolicyArn"])["Policy"]
            version = iam.get_policy_version(PolicyArn=each["PolicyArn"], VersionId=policy["DefaultVersionId"])
            documents.append(version["PolicyVersion"]["Document"])
        return [json.loads(unquote(each)) if isinstance(each, str) else each for each in documents]


def limit_of(mapping: Mapping[str, Any]) -> int | None:
    """Return the limit of the invocations that a mapping makes at once; None without one.

    Raises:
        TypeError, ValueError: the limit, which some endpoints give as text, is not a number.
    """
    if pollers := (mapping.get("ProvisionedPollerConfig") or {}).get("MaximumPollers"):
        return int(pollers) * INVOCATIONS_OF_POLLER
    limit = (mapping.get("ScalingConfig") or {}).get("MaximumConcurrency")
    return int(limit) if limit else None


def check_deployed(
    clients: Account, *, stack: str | None = None, queue: str | None = None, template: Path | None = None
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
    here = read_template(template, tolerant=True) if template else None
    if template is None:
        with suppress(TemplateError, UsageError):  # there need not be one here
            here = read_template(find_template(), tolerant=True)
    gatherer = DeployedGatherer(clients, here)
    if stack is not None:
        gatherer.add_stack(stack)
    elif queue is not None:
        gatherer.add_queue(queue)
    facts = gatherer.facts()
    if not facts.mappings:
        checked = f"stack {stack}" if stack else f"queue {queue}"
        raise UsageError(f"{checked} has no queue that a function consumes")
    unique = {(each.rule, each.text): each for each in (*findings_of(facts), *findings_of_code(facts))}
    order = sorted(unique.values(), key=lambda each: (each.at or At("")).resource)
    return CheckReport(tuple(order), tuple(gatherer.skipped), len(facts.queues), len(facts.functions))
