"""A stack in MiniStack: building and deploying it, and what it holds."""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

from tests.deploy.aws import client
from tests.deploy.corrections import correct
from tests.deploy.environment import sam

PATIENCE_SECONDS = 300.0
"""The limit of all waits on MiniStack. On an idle machine the longest takes about a tenth of this."""


class DeadlineExceeded(AssertionError):
    """Something did not happen in time."""


def wait_until(what: str, is_true: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until `is_true` returns a true value.

    Raises:
        DeadlineExceeded: It did not, in so many seconds.
    """
    ends_at = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > ends_at:
            raise DeadlineExceeded(f"not in {seconds:.0f} s: {what}")
        time.sleep(0.1)


@dataclass(frozen=True)
class Message:
    """A message as it is in a queue."""

    id: str
    body: Any
    envelope: dict[str, Any]
    """The content of the `Tarry` attribute; empty without one."""


@dataclass(frozen=True)
class Stack:
    """A stack of this name, deployed or not."""

    url: str
    name: str
    parameters: dict[str, str] = field(default_factory=dict)

    def client(self, service: Any) -> Any:
        return client(service, self.url)

    def deploy(self, project: Path) -> str:
        """Deploy the built project with `sam deploy`, as its samconfig.toml says; return what it printed."""
        options = ["--stack-name", self.name, "--no-confirm-changeset", "--no-progressbar"]
        if self.parameters:
            options += ["--parameter-overrides", *(f"{name}={value}" for name, value in self.parameters.items())]
        printed = sam(self.url, "deploy", *options, cwd=project)
        self._correct()
        return printed

    def create(self, built: Path) -> None:
        """Deploy the built template without SAM CLI, which takes a third of the time."""
        s3, cloudformation = self.client("s3"), self.client("cloudformation")
        s3.create_bucket(Bucket=f"{self.name}-code")
        template = _with_uploaded_code(built, f"{self.name}-code", s3)
        s3.put_object(Bucket=f"{self.name}-code", Key="template.json", Body=template)  # too long for a TemplateBody
        capabilities = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
        parameters = [{"ParameterKey": name, "ParameterValue": value} for name, value in self.parameters.items()]
        settings = {"Capabilities": capabilities, "Parameters": parameters}
        url = f"https://s3.amazonaws.com/{self.name}-code/template.json"
        cloudformation.create_stack(StackName=self.name, TemplateURL=url, **settings)
        wait_until(f"the stack {self.name} is made", lambda: not self.status.endswith("IN_PROGRESS"))
        if self.status != "CREATE_COMPLETE":
            reasons = [event.get("ResourceStatusReason") for event in self._events()]
            raise AssertionError(f"the stack {self.name} is {self.status}: {'; '.join(filter(None, reasons))}")
        self._correct()

    @property
    def status(self) -> str:
        return str(self.client("cloudformation").describe_stacks(StackName=self.name)["Stacks"][0]["StackStatus"])

    def _correct(self) -> None:
        kinds = ("AWS::IAM::Role", "AWS::SecretsManager::Secret")
        roles, secrets = (list(self.resources(kind).values()) for kind in kinds)
        correct(self.url, roles, secrets)

    def delete(self) -> None:
        """Delete the stack without SAM CLI."""
        cloudformation = self.client("cloudformation")
        stack = cloudformation.describe_stacks(StackName=self.name)["Stacks"][0]["StackId"]
        cloudformation.delete_stack(StackName=self.name)
        deleted = Stack(self.url, stack)
        wait_until(f"the stack {self.name} is deleted", lambda: deleted.status == "DELETE_COMPLETE")

    def _events(self) -> Iterator[dict[str, Any]]:
        yield from self.client("cloudformation").describe_stack_events(StackName=self.name)["StackEvents"]

    def resources(self, kind: str) -> dict[str, str]:
        """Return the physical ids of the resources of this type by their logical ids."""
        found = self.client("cloudformation").list_stack_resources(StackName=self.name)["StackResourceSummaries"]
        return {
            resource["LogicalResourceId"]: resource["PhysicalResourceId"]
            for resource in found
            if resource["ResourceType"] == kind
        }

    @cached_property
    def outputs(self) -> dict[str, str]:
        stack = self.client("cloudformation").describe_stacks(StackName=self.name)["Stacks"][0]
        return {output["OutputKey"]: output["OutputValue"] for output in stack.get("Outputs", [])}

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the items of a table of the template, with plain values."""
        items = self.client("dynamodb").scan(TableName=self.resources("AWS::DynamoDB::Table")[name])["Items"]
        return [{name: _plain(value) for name, value in item.items()} for item in items]

    def secret(self, secret: str) -> str:
        return str(self.client("secretsmanager").get_secret_value(SecretId=secret)["SecretString"])

    def objects(self, bucket: str) -> dict[str, str]:
        """Return the texts of the objects in a bucket by their keys."""
        s3 = self.client("s3")
        found = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {entry["Key"]: s3.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read().decode() for entry in found}

    def log(self) -> list[str]:
        """Return all lines that the functions logged, in no order."""
        logs = self.client("logs")
        return [
            event["message"]
            for group in logs.describe_log_groups()["logGroups"]
            for event in logs.filter_log_events(logGroupName=group["logGroupName"])["events"]
        ]

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all event source mappings for the block, so that messages sent in it are received together."""
        function = self.client("lambda")
        mappings = [mapping["UUID"] for mapping in function.list_event_source_mappings()["EventSourceMappings"]]
        for mapping in mappings:
            function.update_event_source_mapping(UUID=mapping, Enabled=False)
        try:
            yield
        finally:
            for mapping in mappings:
                function.update_event_source_mapping(UUID=mapping, Enabled=True)

    def send(self, queue: str, record: dict[str, Any]) -> str:
        """Send a record of an SQS event to the queue of this URL; return the message id."""
        order = {}
        if group := record["attributes"].get("MessageGroupId"):
            order = {"MessageGroupId": group, "MessageDeduplicationId": record["messageId"]}
        sent = self.client_of_queues.send_message(QueueUrl=queue, MessageBody=record["body"], **order)
        return str(sent["MessageId"])

    @cached_property
    def client_of_queues(self) -> Any:
        return self.client("sqs")

    def unsettled(self, *queues: str) -> dict[str, int]:
        """Return how many messages are in each queue, visible or not, leaving out empty queues."""
        counts = {}
        for queue in queues:
            found = self.client_of_queues.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
            names = ("", "NotVisible", "Delayed")
            counts[queue] = sum(int(found[f"ApproximateNumberOfMessages{name}"]) for name in names)
        return {queue: count for queue, count in counts.items() if count}

    def wait_until_settled(self, *queues: str, seconds: float = PATIENCE_SECONDS) -> None:
        try:
            wait_until("the queues are empty", lambda: not self.unsettled(*queues), seconds)
        except DeadlineExceeded as error:
            warnings = [line for line in self.log() if line.startswith(("missing_permission", "unhandled"))]
            raise DeadlineExceeded("\n".join([f"{error}: {self.unsettled(*queues)}", *warnings[:5]])) from None

    def messages(self, queue: str) -> list[Message]:
        """Return all messages of a queue that are visible, and make them visible again."""
        everything = {"MessageAttributeNames": ["All"], "MaxNumberOfMessages": 10, "VisibilityTimeout": 60}
        found: list[dict[str, Any]] = []
        while received := self.client_of_queues.receive_message(QueueUrl=queue, **everything).get("Messages"):
            found += received
        for message in found:
            self.client_of_queues.change_message_visibility(
                QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
            )
        return [_message(message) for message in found]


def _message(received: dict[str, Any]) -> Message:
    attribute = received.get("MessageAttributes", {}).get("Tarry", {}).get("StringValue", "{}")
    return Message(received["MessageId"], _json_or_text(received["Body"]), json.loads(attribute))


def _json_or_text(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body


def _plain(value: dict[str, Any]) -> Any:
    """Return the value of a DynamoDB attribute: text or a number."""
    [(kind, content)] = value.items()
    return int(content) if kind == "N" else content


def _with_uploaded_code(built: Path, bucket: str, s3: Any) -> str:
    """Return the built template with the code of its functions and layers in a bucket, as `sam package` does."""
    template = yaml_parse((built / "template.yaml").read_text())
    for name, resource in template["Resources"].items():
        for key in ("CodeUri", "ContentUri"):
            if folder := resource.get("Properties", {}).get(key):
                with tempfile.TemporaryDirectory() as place:
                    archive = shutil.make_archive(f"{place}/{name}", "zip", built / folder)
                    s3.upload_file(archive, bucket, f"{name}.zip")
                resource["Properties"][key] = f"s3://{bucket}/{name}.zip"
    return json.dumps(template)
