"""Where a command acts, at AWS or at an SQS on this machine; its clients, and the dead-letter queues it is about."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tarry.failed import UnknownQueue
from tarry.failed.queue_names import (
    DEFAULT_TEMPLATE,
    endpoint_host,
    listed,
    names_resource,
    queue_name,
    redrive_of,
    stack_queues,
)
from tarry.failed.usage import UsageError
from tarry.support.values import queue_arn
from tarry.tools.cli.errors import note
from tarry.tools.cli.failed.prompts import Stopping, confirms, has_terminal
from tarry.tools.cli.options import LOCAL_HOST, LOCAL_URL, TargetOptions
from tarry.tools.common.places import is_aws, place_text
from tarry.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tarry.tools.template import Template

CONNECT_TIMEOUT_SECONDS, READ_TIMEOUT_SECONDS, TRIES = 5, 15, 5
SHORT = {"connect_timeout": 2, "read_timeout": 3, "retries": {"total_max_attempts": 1}}
"""For requests that a command can do without."""
LOCAL_REGION = "us-east-1"

# where it acts


def requests_go_to(where: TargetOptions) -> str:
    """Return the endpoint URL of an SQS client with these options, of the environment, or of the profile.

    Raises `UsageError`.
    """
    from botocore.exceptions import ProfileNotFound

    if where.endpoint_url:
        endpoint_host(where.endpoint_url)
        return where.endpoint_url
    try:
        return _chosen_endpoint(where, ignored=ignores_configured(where))
    except ProfileNotFound:
        if url := os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL"):
            return url  # no profile is needed there
        raise


def at_place(where: TargetOptions, queues: Sequence[str] = ()) -> TargetOptions:
    """Return the options with the endpoint of the place that they say.

    ``--local``, ``--port``, ``--aws``, ``--endpoint-url``, ``--stack``, a configured endpoint and the URL of a queue
    (also of one of ``queues``, if the command takes several) say where. Otherwise it is the `tarry local` that runs the
    template, if there is one and no region or profile is given, or AWS. Raises `UsageError` for options that contradict
    each other.
    """
    is_local = where.local or where.port is not None
    named = {"--port" if where.port else "--local": is_local, "--aws": where.aws, "--endpoint-url": where.endpoint_url}
    if len(given := [name for name, value in named.items() if value]) > 1:
        raise UsageError(f"{' and '.join(given)} cannot be combined: give one of them")
    if is_local and where.stack:
        other = f"give --aws instead of {given[0]} for the stack {where.stack} on AWS"
        raise UsageError(f"tarry local has no stacks: {other}")
    urls = [each for each in (*queues, where.queue or "") if "://" in each]
    says_where = bool(given or where.stack) or _is_configured(where)
    is_placed = says_where or bool(urls)
    if where.port is not None:
        where = replace(where, endpoint_url=f"http://{LOCAL_HOST}:{where.port}")
    elif where.local:
        where = replace(where, endpoint_url=_of_tarry_local(where) or LOCAL_URL)
    elif urls and not says_where and not is_aws(urls[0]):
        where = replace(where, endpoint_url="/".join(urls[0].split("/")[:3]))
    elif not is_placed and not (where.region or where.profile):
        where = replace(where, endpoint_url=_of_tarry_local(where))
    wrong = next((each for each in urls if not is_aws(each)), None)
    if wrong and is_aws(requests_go_to(where)):
        raise UsageError(
            f"queue {wrong} is local, but requests go to AWS: name the queue, or leave out the other place"
        )
    return replace(where, is_placed=is_placed)


def check_placed(where: TargetOptions, *, force: bool = False) -> None:
    """Check that a command that changes something was told where, or can ask. Raises `UsageError`."""
    if not where.is_placed and (force or not has_terminal()):
        raise UsageError(
            "say where to do this: --local, --aws, --stack NAME or --endpoint-url URL (without one of them it would be "
            f"{place_text(requests_go_to(where), region=where.region)}); nothing was changed"
        )


def confirms_place(where: TargetOptions, question: str, stopping: Stopping | None = None) -> bool:
    """Whether the user said where to act, or says yes to a question that names the place."""
    if where.is_placed:
        return True
    return confirms(Console(file=sys.stderr, highlight=False), stopping or Stopping(), question)


def ignores_configured(where: TargetOptions) -> bool:
    """Whether an endpoint of the environment or the profile is ignored: with ``--aws``, if that one is not AWS."""
    return where.aws and not is_aws(_chosen_endpoint(where, ignored=False))


def _chosen_endpoint(where: TargetOptions, *, ignored: bool) -> str:
    """Return the endpoint URL that boto3 chooses, without reading credentials; ``ignored``: not that of the settings.

    Raises `UsageError`.
    """
    import boto3
    from botocore.config import Config

    session = boto3.session.Session(profile_name=where.profile)
    region = where.region or os.environ.get("AWS_REGION") or session.region_name or LOCAL_REGION
    config = Config(ignore_configured_endpoint_urls=ignored or None)  # type: ignore[call-arg] # not in its stubs
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
    try:
        client = session.client("sqs", region_name=region, config=config, **keys)  # type: ignore[call-overload]
    except ValueError as error:
        raise UsageError(f"the endpoint URL in the settings of AWS cannot be used: {error}") from error
    url: str = client.meta.endpoint_url
    return url


def _is_configured(where: TargetOptions) -> bool:
    """Whether the environment or the profile has an endpoint for SQS."""
    from botocore.exceptions import ProfileNotFound

    try:
        return _chosen_endpoint(where, ignored=False) != _chosen_endpoint(where, ignored=True)
    except ProfileNotFound:
        return bool(os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL"))


def _of_tarry_local(where: TargetOptions) -> str | None:
    """Return the URL of the `tarry local` that runs the template; None if there is none."""
    try:
        from tarry.tools.local.instances import instance_here, instance_of

        found = instance_of(where.template) if where.template else instance_here()
    except ModuleNotFoundError:  # of the extra that reads templates
        return None
    return found.url if found else None


# clients and queues


@dataclass(frozen=True)
class Targets:
    """The dead-letter queues (names or URLs), and names of queues that dead letters may be sent to."""

    queues: tuple[str, ...]
    known: frozenset[str] = frozenset()
    template: Template | None = None
    template_names: Mapping[str, str] = field(default_factory=dict)
    """The queue names of the template by the names in the stack, where they differ."""


class AwsAccess:
    """The clients for AWS, or for an endpoint in its place."""

    def __init__(self, where: TargetOptions) -> None:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import ProfileNotFound

        from tarry.tools.local.aws.client import session_without_profile

        region = where.region or os.environ.get("AWS_REGION") or None  # boto3 itself reads only AWS_DEFAULT_REGION
        self._new_session = partial(boto3.session.Session, profile_name=where.profile, region_name=region)
        self._endpoint_url = where.endpoint_url
        self.url = requests_go_to(where)
        self.is_aws = is_aws(self.url)
        try:
            self._session = self._new_session()
        except ProfileNotFound:
            if where.profile or self.is_aws:
                raise
            self._new_session = partial(session_without_profile, region_name=region)  # no profile is needed there
            self._session = self._new_session()
        self.endpoint = where.endpoint_url if self.is_aws else self.url
        """The endpoint URL that takes the place of AWS, or that was named; otherwise None."""
        self._config = Config(
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            read_timeout=READ_TIMEOUT_SECONDS,
            retries={"total_max_attempts": TRIES, "mode": "standard"},
            proxies=None if self.is_aws else {},  # a company proxy cannot reach this machine
            ignore_configured_endpoint_urls=ignores_configured(where) or None,  # type: ignore[call-arg] # not in its stubs
        )
        self.region: str | None = self._session.region_name or (_configured(where)[0] if self.is_aws else LOCAL_REGION)
        self._credentials: dict[str, str] = {}
        if not self.is_aws and self._session.get_credentials() is None:
            self._credentials = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}  # not checked

    def place(self, account: str | None = None, region: str | None = None) -> str:
        """Return where requests go, for a user: ``AWS 123456789012 eu-west-1`` or ``local 127.0.0.1:4576``."""
        return place_text(self.url, account, region or self.region)

    def say_place(self, service: str = "sqs") -> None:
        """Write to stderr where requests to a service go; the account is that of the credentials, if STS tells it."""
        from botocore.exceptions import BotoCoreError, ClientError

        url, account = self.client(service).meta.endpoint_url, None
        if is_aws(url):
            with suppress(BotoCoreError, ClientError):
                account = self.identity().split(":")[4]
        note(place_text(url, account, self.region))

    def client(self, service: str, **config: Any) -> Any:
        """Make a boto3 client with longer timeouts and more tries than in a function, but for those in ``config``."""
        from botocore.config import Config

        from tarry.tools.common.answers import checking_answers

        endpoint_url = self._endpoint_url if service == "sqs" or not self.is_aws else None  # at AWS: a VPC endpoint
        if service == "lambda" and not self.is_aws:
            endpoint_url = self.url  # never AWS, if only the endpoint of SQS is configured
        client = self._session.client(
            service,  # type: ignore[call-overload]
            region_name=self.region,
            endpoint_url=endpoint_url,
            config=self._config.merge(Config(**config)),
            **self._credentials,
        )
        return checking_answers(client)

    def identity(self) -> str:
        """Return the ARN of the credentials in one short request to STS. Raises the errors of boto3."""
        from botocore.config import Config

        config = self._config.merge(Config(**SHORT))  # type: ignore[arg-type]
        return str(self._session.client("sts", region_name=self.region, config=config).get_caller_identity()["Arn"])

    def suspensions(self) -> dict[str, str]:
        """Return what the outage guard does, by queue; empty if Lambda refuses or does not answer at once."""
        from tarry.guard.operations import suspensions

        client = self.client("lambda", **SHORT)
        return suspensions(listed(client, "list_event_source_mappings", "EventSourceMappings"), client)

    def renew(self) -> None:
        self._session = self._new_session()

    def world(self) -> World:
        """Return a world whose SQS client is for this account."""
        return World(client_factory=lambda: self.client("sqs"))


def in_project(where: TargetOptions) -> TargetOptions:
    """Return the options, with the stack of the samconfig file if they name no queues.

    Its region precedes that of a profile, as for `sam deploy`. With an endpoint that is not AWS, which has no stacks,
    the options stay as they are. Raises `UsageError`.
    """
    if where.queue or where.template or where.stack or not is_aws(requests_go_to(where)):
        return where
    configured, stack = _configured(where)
    if stack is None:
        return where
    region = where.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or configured
    return replace(where, stack=stack, region=region)


def find_targets(where: TargetOptions, account: AwsAccess, *, needs_template: bool = False) -> Targets:
    """Find the dead-letter queues that the options select.

    ``needs_template``: read the template even if a queue or a stack is named, to find the handlers. Raises
    `UsageError`, `UnknownQueue`, `TemplateError` and `ClientError`.
    """
    if where.stack is not None:
        queues, logical_ids = _of_stack(where.stack, account)
        template = _read(_template(where), where, account) if needs_template else None
        by_id = {queue.logical_id: queue.name for queue in template.queues.values()} if template else {}
        by_logical_id = {logical_id: name for name, logical_id in logical_ids.items()}
        chosen = _chosen(where.queue, queues, by_logical_id, f"stack {where.stack}")
        names_in_template = {name: by_id[each] for name, each in logical_ids.items() if each in by_id}
        return Targets(chosen, frozenset(logical_ids), template, names_in_template)
    is_logical_id = where.queue is not None and names_resource(where.template or DEFAULT_TEMPLATE, where.queue)
    if where.queue is not None and where.template is None and not needs_template and not is_logical_id:
        return Targets((where.queue,))
    path = _template(where)
    template = _read(path, where, account)
    known = frozenset(template.queues)
    if where.queue is not None and where.template is None and not is_logical_id:
        return Targets((where.queue,), known, template)
    targets = [each.dead_letter_arn for each in template.queues.values() if each.dead_letter_arn]
    names = dict.fromkeys(queue_arn(target).name for target in targets)
    if where.queue not in names:
        _check_names(names, path, account)
    logical = {each.logical_id: each.name for each in template.queues.values() if each.logical_id}
    return Targets(_chosen(where.queue, tuple(names), logical, str(path)), known, template)


def project_template(where: TargetOptions, account: AwsAccess) -> Template:
    """Return the template that the options select, for all its queues. Raises `UsageError` and `TemplateError`."""
    path = _template(where)
    template = _read(path, where, account)
    _check_names(template.queues, path, account)
    return template


def _check_names(names: Iterable[str], path: Path, account: AwsAccess) -> None:
    """Check that no name is made of that of the stack. Raises `UsageError`."""
    from tarry.tools.template.model import STACK_NAME

    if account.is_aws and any(STACK_NAME in name for name in names):
        raise UsageError(f"{path} names its queues after the stack: name the stack that you mean (--stack NAME)")


def _chosen(name: str | None, queues: tuple[str, ...], logical: dict[str, str], of: str) -> tuple[str, ...]:
    """Return the named queue, or all queues if ``name`` is None."""
    if not queues:
        raise UsageError(f"{of} has no dead-letter queue: name one (--queue NAME)")
    if name is None:
        return queues
    wanted = queue_name(logical.get(name, name))
    for queue in queues:
        if queue_name(queue) == wanted:
            return (queue,)
    raise UnknownQueue(name, tuple(queue_name(queue) for queue in queues))


def _template(where: TargetOptions) -> Path:
    """Return the template: the given one, or the one that is found in this directory. Raises `UsageError` for none."""
    from tarry.tools.local.project import template_path

    try:
        return template_path(where.template, note)
    except UsageError as error:
        if where.queue or where.stack:
            raise UsageError(f"the template is needed to find the handlers: {error}") from error
        others = "or name a deployed stack (--stack NAME) or a queue (--queue NAME)"
        raise UsageError(f"{error}; {others}") from error


def _read(path: Path, where: TargetOptions, account: AwsAccess) -> Template:
    """Read the template. For AWS no value is made up: it could be in the name of another queue."""
    from tarry.tools.template import read_template
    from tarry.tools.template.finding import read_samconfig

    region, lenient = account.region or LOCAL_REGION, not account.is_aws
    configured = read_samconfig(path, None, is_local=lenient).parameters
    return read_template(path, where.parameters, region, configured=configured, lenient=lenient)


def _configured(where: TargetOptions) -> tuple[str | None, str | None]:
    """Return the region and the stack of the samconfig file, if there is one. Raises `UsageError` for a bad one."""
    try:
        from tarry.tools.template.finding import find_template, read_samconfig

        path = where.template or find_template()
    except (UsageError, ModuleNotFoundError):  # there is no template here, or tarry is installed without its reader
        return None, None
    config = read_samconfig(path, None)
    return config.region, config.stack


def _of_stack(stack: str, account: AwsAccess) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the URLs of the dead-letter queues of a stack, and the logical ids of all its queues by name."""
    queues = {url: logical_id for logical_id, url in stack_queues(account.client("cloudformation"), stack).items()}
    sqs = account.client("sqs")
    by_name = {queue_name(url): url for url in queues}
    dead: dict[str, None] = {}
    for url in queues:
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"]).get("Attributes", {})
        if (redrive := redrive_of(attributes)) is not None:
            dead[by_name.get(redrive.target.name, redrive.target.name)] = None
    return tuple(dead), {name: queues[url] for name, url in by_name.items()}
