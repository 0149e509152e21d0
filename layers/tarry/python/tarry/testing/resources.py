"""The tables, buckets, topics and keys of a template, created in moto."""

from __future__ import annotations

import logging
import os
import urllib.request
import warnings
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING, Any

from tarry.simulator.client import simulated_clients
from tarry.simulator.code import environment
from tarry.template import Intrinsics, Template, TemplateError, TemplateFunction
from tarry.template.intrinsics import Reference, references
from tarry.template.model import ACCOUNT
from tarry.template.variables import physical_name, values_of
from tarry.tooling.errors import UsageError
from tarry.tooling.installation import install_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

HOST = "127.0.0.1"
STOP_SECONDS = 1.0

MODELS = {
    "AWS::DynamoDB::Table": "moto.dynamodb.models.table:Table",
    "AWS::KMS::Key": "moto.kms.models:Key",
    "AWS::S3::Bucket": "moto.s3.models:FakeBucket",
    "AWS::SNS::Topic": "moto.sns.models:Topic",
}
"""The class of moto for each type. moto's CloudFormation would know them, but takes 1.5 seconds to import."""


REQUIRED = {"AWS::KMS::Key": {"KeyPolicy": ""}}
"""Values of properties without which moto cannot create a resource; it makes a policy of its own for an empty one."""


@contextmanager
def moto_for(template: Template) -> Iterator[str]:
    """Run a moto server in this process on a free port, within the context; yield its URL.

    The state of moto is global to the process, so it is reset first.

    Raises:
        UsageError: moto is not installed.
    """
    try:
        with warnings.catch_warnings():  # moto warns of a missing library before it raises the error
            warnings.filterwarnings("ignore", "When using MotoServer", UserWarning)
            from moto.server import ThreadedMotoServer
    except ModuleNotFoundError as error:
        library, what = (error.name or "").partition(".")[0], ", ".join(template.backing)
        extras = "local,local-aws"
        raise UsageError(
            f"tarry local needs {library} for {what}; install it with: {install_command(extras)}"
        ) from error
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(HOST, 0, verbose=False)
    server.start()
    url = f"http://{HOST}:{server.get_host_and_port()[1]}"
    try:
        reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(reset).close()
        yield url
    finally:
        # The server does not always stop in time; its daemon threads do not block the exit of the process.
        stopping = Thread(target=server.stop, daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)


@contextmanager
def moto_in_process(region: str, sqs: Callable[[], Any]) -> Iterator[None]:
    """Mock AWS in this process, within the context and any outer `mock_aws`; ``sqs`` makes the SQS clients of boto3.

    Raises:
        TemplateError: moto is not installed.
    """
    try:
        from moto import mock_aws
    except ModuleNotFoundError as error:
        extras = "testing,local-aws"
        raise TemplateError(f"resources=True needs {error.name}; install it with: {install_command(extras)}") from error
    kept = {name: value for name, value in os.environ.items() if name not in {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}}
    kept |= {"AWS_DEFAULT_REGION": region, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    with environment(kept, replace=True), mock_aws(), simulated_clients(sqs):
        yield


class Resources:
    """The tables, buckets, topics and keys of a template. ``urls`` are the queue URLs by name.

    ``before`` are the resources of the template before it was changed: those that it still has are not created again.

    Raises:
        UsageError: a resource cannot be created, or refers to one of another type.
    """

    def __init__(self, template: Template, urls: Mapping[str, str], before: Resources | None = None) -> None:
        self._template = template
        self._refs = {queue.logical_id: urls[queue.name] for queue in template.queues.values() if queue.logical_id}
        self._attributes = {f"{name}.QueueUrl": url for name, url in self._refs.items()}
        self._made: dict[str, Any] = {}
        """The resources by logical id; None while the properties of a resource are resolved."""
        self.unchanged: list[str] = []
        """The logical ids of resources that exist, and are different in the template: they cannot be changed."""
        if before is not None:
            self._adopt(before)
        for logical_id in template.backing:
            self._make(logical_id)

    def environment(self, function: TemplateFunction, given: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of a function; ``given`` overrides the template.

        Raises:
            UsageError: a value refers to a resource that tarry does not create.
            TemplateError: a value cannot be resolved.
        """
        found = {
            name: str(self._fill(value, f"{function.logical_id}.Environment.Variables.{name}"))
            for name, value in values_of(function, given).items()
        }
        return found | dict(given)

    def delete(self) -> None:
        """Delete the tables and buckets with their contents: moto would refuse to create them again."""
        for logical_id, made in self._made.items():
            resource = self._template.backing[logical_id]
            match resource["Type"]:
                case "AWS::DynamoDB::Table":
                    made.deletion_protection_enabled = False
                case "AWS::S3::Bucket":
                    made.keys.clear()
                case _:
                    continue
            with suppress(Exception):  # the test has deleted it
                made.delete_from_cloudformation_json(
                    made.physical_resource_id, resource, ACCOUNT, self._template.region
                )

    def _adopt(self, before: Resources) -> None:
        for logical_id, made in before._made.items():
            self._made[logical_id], self._refs[logical_id] = made, made.physical_resource_id
            resource = self._template.backing.get(logical_id)
            if resource is not None and resource != before._template.backing.get(logical_id, resource):
                self.unchanged.append(logical_id)

    def _make(self, logical_id: str) -> Any:
        """Return the resource; create it on the first call, after those it refers to."""
        if logical_id not in self._made:
            self._made[logical_id] = None
            resource = self._template.backing[logical_id]
            properties = self._fill(resource.get("Properties", {}), logical_id)
            properties.pop("Subscription", None)  # of a topic: moto would refuse to publish to a queue that it lacks
            resource = {"Type": resource["Type"], "Properties": REQUIRED.get(resource["Type"], {}) | properties}
            module, _, model = MODELS[resource["Type"]].partition(":")
            name = physical_name(logical_id, resource)
            try:
                make = getattr(import_module(module), model).create_from_cloudformation_json
                made = make(name, resource, ACCOUNT, self._template.region)
            except Exception as error:  # moto raises errors of many types, and may lack a library of its extras
                raise UsageError(f"moto cannot create {logical_id}: {error}") from error
            self._made[logical_id], self._refs[logical_id] = made, made.physical_resource_id
        return self._made[logical_id]

    def _fill(self, value: Any, where: str) -> Any:
        """Return the value with its references resolved."""
        for reference in references(value):
            if reference.name in self._template.backing:
                self._look_up(reference, where)
            elif reference.name not in self._refs:
                raise UsageError(f"{where}: {reference} cannot be resolved: tarry does not create {reference.name}")
        return Intrinsics(self._refs, self._attributes).resolve(value, where)

    def _look_up(self, reference: Reference, where: str) -> None:
        made, path = self._make(reference.name), f"{reference.name}.{reference.attribute}"
        if reference.attribute and path not in self._attributes:
            try:
                self._attributes[path] = made.get_cfn_attribute(reference.attribute)
            except Exception as error:
                raise UsageError(f"{where}: {reference} cannot be resolved: moto does not support it") from error
