"""The template's resources beside queues, made in moto: tables, buckets, topics, keys."""

import logging
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from threading import Thread
from typing import Any

from tarry.local.aws.isolation import HOST
from tarry.template import Intrinsics, Template, TemplateFunction
from tarry.template.intrinsics import Reference, references
from tarry.template.model import ACCOUNT
from tarry.template.variables import physical_name, values_of
from tarry.tooling.errors import UsageError

STOP_SECONDS = 1.0


MODELS = {
    "AWS::DynamoDB::Table": "moto.dynamodb.models.table:Table",
    "AWS::KMS::Key": "moto.kms.models:Key",
    "AWS::S3::Bucket": "moto.s3.models:FakeBucket",
    "AWS::SNS::Topic": "moto.sns.models:Topic",
}
"""What moto's CloudFormation makes each type with. It is not asked itself: it takes a second and a half to import."""


@contextmanager
def moto_for(template: Template) -> Iterator[str]:
    """Run moto's server in this process, on a free port, for as long as the context lasts; its URL.

    It is emptied first, since its state is the process's.

    Raises:
        UsageError: moto is not installed.
    """
    try:
        from moto.server import ThreadedMotoServer
    except ModuleNotFoundError as error:
        library, what = (error.name or "").partition(".")[0], ", ".join(template.backing)
        raise UsageError(f'for {what} tarry local needs {library}: pip install "tarry[local,local-aws]"') from error
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(HOST, 0, verbose=False)
    server.start()
    url = f"http://{HOST}:{server.get_host_and_port()[1]}"
    try:
        reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(reset).close()
        yield url
    finally:
        # Its loop does not always notice within reasonable time; its threads do not keep a process from ending.
        stopping = Thread(target=server.stop, daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)


class Resources:
    """The tables, buckets and topics of a template. ``urls`` are its queues', by name.

    Raises:
        UsageError: one of them cannot be made, or refers to what is not made here.
    """

    def __init__(self, template: Template, urls: Mapping[str, str]) -> None:
        self._template = template
        self._refs = {queue.logical_id: urls[queue.name] for queue in template.queues.values() if queue.logical_id}
        self._attributes = {f"{name}.QueueUrl": url for name, url in self._refs.items()}
        self._made: dict[str, Any] = {}
        """By logical id; None for one whose properties are being filled in."""
        for logical_id in template.backing:
            self._make(logical_id)

    def environment(self, function: TemplateFunction, given: Mapping[str, str]) -> dict[str, str]:
        """A function's environment variables; what is ``given`` goes before the template's.

        Raises:
            UsageError: a value refers to something that is not made here.
            TemplateError: nobody can answer what it refers to.
        """
        found = {
            name: str(self._fill(value, f"{function.logical_id}.Environment.Variables.{name}"))
            for name, value in values_of(function, given).items()
        }
        return found | dict(given)

    def _make(self, logical_id: str) -> Any:
        """The resource, made at the first call, after those it refers to."""
        if logical_id not in self._made:
            self._made[logical_id] = None
            resource = self._template.backing[logical_id]
            properties = self._fill(resource.get("Properties", {}), logical_id)
            resource = {"Type": resource["Type"], "Properties": properties}
            module, _, model = MODELS[resource["Type"]].partition(":")
            make = getattr(import_module(module), model).create_from_cloudformation_json
            name = physical_name(logical_id, resource)
            try:
                made = make(name, resource, ACCOUNT, self._template.region)
            except Exception as error:  # whatever moto says of it
                raise UsageError(f"moto cannot make {logical_id}: {error}") from error
            self._made[logical_id], self._refs[logical_id] = made, made.physical_resource_id
        return self._made[logical_id]

    def _fill(self, value: Any, where: str) -> Any:
        """The value, with what it refers to."""
        for reference in references(value):
            if reference.name in self._template.backing:
                self._look_up(reference, where)
            elif reference.name not in self._refs:
                raise UsageError(f"{where}: {reference} cannot be resolved: tarry local makes no {reference.name}")
        return Intrinsics(self._refs, self._attributes).resolve(value, where)

    def _look_up(self, reference: Reference, where: str) -> None:
        made, path = self._make(reference.name), f"{reference.name}.{reference.attribute}"
        if reference.attribute and path not in self._attributes:
            try:
                self._attributes[path] = made.get_cfn_attribute(reference.attribute)
            except Exception as error:
                raise UsageError(f"{where}: {reference} cannot be resolved: moto does not know it") from error
