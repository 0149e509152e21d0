"""The event source mappings of functions and queues: find them, enable and disable them, wait until it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tarry import failed
from tarry.failed.queue_names import stack_queues, stack_resources
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code
from tarry.support.values import queue_arn
from tarry.world import current

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tarry.tools.cli.failed.targets import AwsAccess

ENABLED, DISABLED = "Enabled", "Disabled"
IN_USE, NOT_FOUND = "ResourceInUseException", "ResourceNotFoundException"
WAIT_SECONDS = 300
"""The longest wait for a state. Lambda usually needs less than a minute."""
POLL_SECONDS = 1.0


class Mapping(NamedTuple):
    """An event source mapping of an SQS queue, as Lambda described it last."""

    uuid: str
    queue: str
    function: str
    """The name of the function, with the alias or version if the mapping has one."""
    state: str
    account: str
    region: str

    def __str__(self) -> str:
        return f"{self.queue} -> {self.function}"


class Change(NamedTuple):
    """The result of enabling or disabling a mapping. ``error`` says why it does not have the wanted state."""

    mapping: Mapping
    before: str
    after: str
    error: str | None = None


def find(account: AwsAccess, function: str | None, queue: str | None, stack: str | None) -> list[Mapping]:
    """Return the mappings of SQS queues of a function, a queue, or a stack; within a stack, logical ids are names too.

    Raises:
        UsageError: there is no such function, or no mapping.
        tarry.failed.UnknownQueue: there is no such queue.
        botocore.exceptions.ClientError: AWS refuses a request.
    """
    client = account.client("lambda")
    if stack is not None and function is None and queue is None:
        found = [
            client.get_event_source_mapping(UUID=uuid)
            for uuid in _of_stack(account, stack, "EventSourceMapping").values()
        ]
        return _of_sqs(found, f"stack {stack}")
    if function is not None:
        if stack is not None:
            function = _of_stack(account, stack, "Function").get(function, function)
        return _of_sqs(_listed(account, client, function, FunctionName=function), f"function {function}")
    assert queue is not None
    if stack is not None:
        queue = stack_queues(account.client("cloudformation"), stack).get(queue, queue)
    dead_letters = failed.find(queue)
    found = _listed(account, client, queue, EventSourceArn=dead_letters.arn.text)
    sources = ", ".join(source.name for source in dead_letters.sources or ())
    hint = f"; it is the dead-letter queue of {sources}, which you can pause instead" if sources else ""
    return _of_sqs(found, f"queue {dead_letters.name}", hint)


def _of_stack(account: AwsAccess, stack: str, kind: str) -> dict[str, str]:
    """Return the physical ids of the Lambda resources of a kind, by logical id."""
    return stack_resources(account.client("cloudformation"), stack, f"AWS::Lambda::{kind}")


def _listed(account: AwsAccess, client: Any, name: str, **of: str) -> list[dict[str, Any]]:
    from botocore.exceptions import ClientError

    try:
        pages = client.get_paginator("list_event_source_mappings").paginate(**of)
        return [each for page in pages for each in page["EventSourceMappings"]]
    except ClientError as error:
        if error_code(error) == NOT_FOUND and "FunctionName" in of:
            raise UsageError(
                f"function {name!r} does not exist; for a logical id, name the stack as well (--stack NAME)"
            ) from error
        if not account.is_aws:
            raise UsageError(
                f"{account.endpoint} has no event source mappings to change: only AWS and tarry local have them"
            ) from error
        raise


def _of_sqs(found: Sequence[dict[str, Any]], of: str, hint: str = "") -> list[Mapping]:
    """Return the mappings of SQS among these. Raises `UsageError` if there is none."""
    mappings = [_mapping(each) for each in found if queue_arn(each.get("EventSourceArn")).name]
    if not mappings:
        raise UsageError(f"{of} has no event source mapping of SQS{hint}")
    return sorted(mappings, key=str)


def _mapping(found: dict[str, Any]) -> Mapping:
    queue, function = queue_arn(found["EventSourceArn"]), str(found["FunctionArn"])
    return Mapping(
        str(found["UUID"]), queue.name, function.split(":", 6)[6], str(found["State"]), *function.split(":")[4:2:-1]
    )


def change(
    account: AwsAccess,
    mappings: Sequence[Mapping],
    *,
    enabled: bool,
    progress: Callable[[Mapping, float], None],
    stop: Callable[[], bool],
) -> list[Change]:
    """Enable or disable mappings, and wait until each has that state, up to five minutes in all.

    A mapping that Lambda is changing already is changed after that. ``progress`` is called about once a second with
    each mapping that is not there yet, and the seconds so far.
    """
    client, clock = account.client("lambda"), current().clock
    wanted = ENABLED if enabled else DISABLED
    done: dict[str, Change] = {}
    asked: set[str] = set()
    before = {each.uuid: each for each in mappings}
    began = clock.monotonic()
    while True:
        for uuid, first in before.items():
            if uuid not in done and (result := _step(client, first, wanted, asked)) is not None:
                done[uuid] = result
        waiting = [each for uuid, each in before.items() if uuid not in done]
        seconds = clock.monotonic() - began
        if not waiting:
            break
        if stop() or seconds >= WAIT_SECONDS:
            why = "stopped" if stop() else f"not {wanted} after {WAIT_SECONDS} s; Lambda may still change it"
            for each in waiting:
                state = str(client.get_event_source_mapping(UUID=each.uuid)["State"])
                done[each.uuid] = Change(each, each.state, state, why)
            break
        for each in waiting:
            progress(each, seconds)
        clock.sleep(POLL_SECONDS)
    return [done[each.uuid] for each in mappings]


def _step(client: Any, first: Mapping, wanted: str, asked: set[str]) -> Change | None:
    """Ask for the state unless that was done, then look; return the result, or None to look again later."""
    from botocore.exceptions import BotoCoreError, ClientError

    state = first.state
    try:
        if first.uuid not in asked and state != wanted:
            client.update_event_source_mapping(UUID=first.uuid, Enabled=wanted == ENABLED)
        asked.add(first.uuid)
        state = str(client.get_event_source_mapping(UUID=first.uuid)["State"])
    except ClientError as error:
        if error_code(error) == IN_USE:
            return None
        return Change(first, first.state, state, str(error))
    except BotoCoreError as error:
        return Change(first, first.state, state, str(error))
    if state == "Deleting":
        return Change(first, first.state, state, "it is being deleted")
    return Change(first, first.state, state) if state == wanted else None
