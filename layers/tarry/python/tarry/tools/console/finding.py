"""Find the queues that a console shows: of a stack, a template, an endpoint, or by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tarry.failed import UnknownQueue
from tarry.failed.queue_names import (
    attributes_of,
    endpoint_host,
    existing_url,
    listed,
    queue_name,
    redrive_of,
    stack_queues,
)
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, is_denied
from tarry.support.values import queue_arn
from tarry.tools.common.places import is_aws
from tarry.tools.console.access import Place, WatchedQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tarry.tools.common.audit import Account
    from tarry.tools.template import Template


class FoundQueues(NamedTuple):
    """The queues of a console, and the account that they are in."""

    queues: list[WatchedQueue]
    account: str | None


def queues_of_stack(stack: str, account: Account) -> FoundQueues:
    """Find the queues of a deployed stack, with the functions that consume them.

    Raises `UsageError` and `ClientError`.
    """
    urls = [*stack_queues(account.client("cloudformation"), stack).values()]
    if not urls:
        raise UsageError(f"stack {stack} has no queue: name another stack (--stack NAME) or a queue (--queue NAME)")
    return _watched(urls, account)


def queues_of_endpoint(account: Account) -> FoundQueues:
    """Find all queues at the place of AWS. Raises `UsageError` and `BotoCoreError`."""
    urls = [*listed(account.client("sqs"), "list_queues", "QueueUrls")]
    if not urls:
        raise UsageError(f"there is no queue at {account.endpoint}: start tarry local, or give another --endpoint-url")
    return _watched(urls, account)


def queues_of_template(template: Template, account: Account) -> FoundQueues:
    """Find the queues of a template. A queue that does not exist keeps its name: the pages say that it is gone.

    Raises `UsageError` and `ClientError`.
    """
    if not template.queues:
        raise UsageError(f"{template.path} has no queue: name one (--queue NAME)")
    sqs = account.client("sqs")
    addresses = {name: existing_url(name, sqs) or name for name in template.queues}
    functions = _functions_of(template)
    targets = {
        name: queue_arn(each.dead_letter_arn).name for name, each in template.queues.items() if each.dead_letter_arn
    }
    queues = [
        WatchedQueue(addresses[name], _address(targets.get(name), addresses, sqs), functions.get(name, ()))
        for name in template.queues
        if name in targets or name not in targets.values()
    ]
    found = (attributes_of(each, sqs) for each in addresses.values())
    return FoundQueues(queues, _account_of(found) if account.is_aws else None)


def queues_by_name(names: Iterable[str], account: Account) -> FoundQueues:
    """Find queues by name or URL. A dead-letter queue stands for the queues whose dead letters it has.

    Raises `UnknownQueue` and `ClientError`.
    """
    sqs = account.client("sqs")
    urls: dict[str, None] = {}
    for name in names:
        url = name if "://" in name else existing_url(name, sqs)
        if url is None or attributes_of(url, sqs) is None:
            raise UnknownQueue(name, ())
        urls |= dict.fromkeys([*_sources(url, sqs), url])
    return _watched([*urls], account)


def place_of(account: Account, account_id: str | None) -> Place:
    """Return the place of the queues, as pages show it."""
    endpoint = account.endpoint
    if endpoint is not None:
        endpoint_host(endpoint)  # raises for an address that is not one
    if endpoint is None or is_aws(endpoint):
        return Place("AWS", account.region, account_id, endpoint)
    from tarry.tools.local.aws.client import description

    is_local = "queues" in description(endpoint)
    name = f"tarry local at {endpoint.partition('://')[2].rstrip('/')}" if is_local else endpoint
    return Place(name, account.region, None, endpoint)


def _watched(urls: list[str], account: Account) -> FoundQueues:
    """Pair queues with their dead-letter queues."""
    sqs = account.client("sqs")
    attributes = {url: attributes_of(url, sqs) for url in urls}
    addresses = {queue_name(url): url for url in urls}
    redrives = {url: redrive_of(found or {}) for url, found in attributes.items()}
    targets = {url: redrive.target.name for url, redrive in redrives.items() if redrive}
    dead = set(targets.values())
    queues = [
        WatchedQueue(url, _address(targets.get(url), addresses, sqs), _consumers(found, account))
        for url, found in attributes.items()
        if url in targets or queue_name(url) not in dead
    ]
    return FoundQueues(queues, _account_of(attributes.values()) if account.is_aws else None)


def _consumers(attributes: Mapping[str, str] | None, account: Account) -> tuple[str, ...]:
    """Return the names of the functions that consume a queue at AWS; none if they cannot be listed."""
    if attributes is None or not account.is_aws:
        return ()
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        of_queue = {"EventSourceArn": attributes["QueueArn"]}
        found = listed(account.client("lambda"), "list_event_source_mappings", "EventSourceMappings", **of_queue)
        arns = [each["FunctionArn"] for each in found]
    except (BotoCoreError, ClientError):
        return ()
    return tuple(dict.fromkeys(arn.split(":")[6] for arn in arns))


def _functions_of(template: Template) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for mapping in template.mappings:
        function = template.functions.get(mapping.function)
        name = function.logical_id if function else mapping.function
        found[mapping.queue] = tuple(dict.fromkeys((*found.get(mapping.queue, ()), name)))
    return found


def _address(name: str | None, addresses: Mapping[str, str], sqs: Any) -> str | None:
    """Return the URL of a dead-letter queue, or its name if it does not exist."""
    return name and (addresses.get(name) or existing_url(name, sqs) or name)


def _sources(url: str, sqs: Any) -> list[str]:
    """Return the URLs of the queues whose dead letters a queue has; none if they cannot be listed."""
    try:
        return [*listed(sqs, "list_dead_letter_source_queues", "queueUrls", QueueUrl=url)]
    except Exception as error:
        if is_denied(error_code(error)):
            return []
        raise


def _account_of(attributes: Iterable[Mapping[str, str] | None]) -> str | None:
    return next((queue_arn(each["QueueArn"]).account for each in attributes if each), None)
