"""`tarry pause` and `tarry resume`: disable and enable event source mappings, and wait until it holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import typer

from tarry import failed
from tarry.failed.queue_names import listed, stack_queues, stack_resources
from tarry.failed.usage import UsageError
from tarry.sqs.refusals import error_code, is_denied
from tarry.support.values import queue_arn
from tarry.tools.cli.errors import StatusLine, note, refusals
from tarry.tools.cli.failed.prompts import StoppedBySignal, Stopping
from tarry.tools.cli.failed.session import CommandAudit, write_json
from tarry.tools.cli.failed.targets import AwsAccess, at_place, check_placed, confirms_place
from tarry.tools.cli.options import AS_JSON, AUDIT, AwsOptions, TargetOptions, argument, option
from tarry.world import current, use

PAUSE_EXAMPLE = """\
tarry pause --queue orders --aws
tarry pause OrdersFunction --stack shop
tarry pause --stack shop"""
RESUME_EXAMPLE = """\
tarry resume --queue orders --aws
tarry resume --stack shop"""
LINE_EVERY_SECONDS = 10.0
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

    def result(self, after: str, guard: str = "", error: str = "") -> dict[str, str]:
        """Return the result of a change as the audit has it; ``error``: why it does not have the wanted state."""
        found = {"queue": self.queue, "function": self.function, "uuid": self.uuid}
        found |= {"before": self.state, "after": after}
        return found | {name: text for name, text in [("guard", guard), ("error", error)] if text}


@dataclass(frozen=True)
class PausedOptions:
    """The event source mappings to change, and how to tell of it."""

    function: str | None = argument("FUNCTION", "The name or ARN of the function; with --stack, also its logical id.")
    queue: str | None = option("--queue -q NAME|URL", "The functions of this queue; with --stack, also its logical id.")
    stack: str | None = option("--stack NAME", "A deployed stack; alone, all its functions that consume queues.")
    as_json: bool = AS_JSON
    audit: Path | None = AUDIT


def pause(chosen: PausedOptions, place: AwsOptions) -> None:
    """Stop Lambda from giving the messages of a queue to its function.

    It disables the event source mappings, and waits until they are disabled.
    Batches that the function already has run to their end. The other messages wait
    in their queue, and expire when its retention period ends.

    If the outage guard has suspended a function, the guard no longer resumes it.

    Exit code: 0 all are disabled, 1 some are not, 2 wrong usage (nothing was
    changed), 128 plus its number after a signal.
    """
    _run("pause", chosen, place)


def resume(chosen: PausedOptions, place: AwsOptions) -> None:
    """Let Lambda give the messages of a queue to its function again.

    It enables the event source mappings, and waits until they are enabled.
    If the outage guard has suspended a function, its former MaximumConcurrency
    is restored.

    Exit code: 0 all are enabled, 1 some are not, 2 wrong usage (nothing was
    changed), 128 plus its number after a signal.
    """
    _run("resume", chosen, place)


def _run(command: str, chosen: PausedOptions, place_options: AwsOptions) -> None:
    function, where = chosen.function, TargetOptions(chosen.queue, None, chosen.stack, **vars(place_options))
    stopping, changes = Stopping(), list[dict[str, str]]()
    with refusals(lambda: bool(changes), aws=True):
        if bool(function) + bool(where.queue) + (bool(where.stack) and not function and not where.queue) != 1:
            raise UsageError(f"name what to {command}: a function, a queue (--queue NAME), or a stack (--stack NAME)")
        where = at_place(where)
        check_placed(where)
        account = AwsAccess(where)
        with use(account.world()), stopping.listening():
            try:
                with stopping.at_prompt():  # nothing was changed yet
                    mappings = find(account, function, where.queue, where.stack)
                    place = account.place(mappings[0].account, mappings[0].region)
                    note(place)
                    question = f"{command.capitalize()} {', '.join(map(str, mappings))} at {place}?"
                    if not confirms_place(where, question, stopping):
                        raise typer.Exit(0)
                    asked = {"function": function, "queue": where.queue, "stack": where.stack}
                    written = CommandAudit(chosen.audit, command, account, asked)
            except StoppedBySignal:
                raise typer.Exit(stopping.exit_code) from None
            try:
                written.begin()
                line = StatusLine(LINE_EVERY_SECONDS)
                changes += change(account, mappings, enabled=command == "resume", progress=line.show, stop=stopping)
                line.show("")
                for each in changes:
                    written.add_change(each)
                    _write(each, as_json=chosen.as_json)
            finally:
                written.end(signal=stopping.name or None)
        if command == "pause" and not all("error" in each for each in changes):
            note(f"Messages wait in their queue until its retention period ends. To resume: {_resume(function, where)}")
        failures = any("error" in each for each in changes)
        raise typer.Exit(stopping.exit_code if stopping() else int(failures))


def _write(change: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        write_json(change)
        return
    before, after, error, guard = change["before"], change["after"], change.get("error"), change.get("guard")
    states = f"{before} -> {after}" if before != after else after if error else f"{after} (unchanged)"
    more = (f"; {guard}" if guard else "") + (f"; failed: {error}" if error else "")
    typer.echo(f"{change['queue']} -> {change['function']}: {states}{more}")


def _resume(function: str | None, where: TargetOptions) -> str:
    named = {"--queue": where.queue, "--stack": where.stack, "--endpoint-url": where.endpoint_url}
    named |= {"--region": where.region, "--profile": where.profile}
    options = [f"{name} {value}" for name, value in named.items() if value]
    options += ["--aws"] if where.aws and not where.stack else []
    return " ".join(["tarry resume", *([function] if function else []), *options])


# event source mappings


def find(account: AwsAccess, function: str | None, queue: str | None, stack: str | None) -> list[Mapping]:
    """Return the mappings of SQS queues of a function, a queue, or a stack; within a stack, logical ids are names too.

    Raises `UsageError`, `UnknownQueue` and `ClientError`.
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
        return [*listed(client, "list_event_source_mappings", "EventSourceMappings", **of)]
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
    progress: Callable[[str], None],
    stop: Callable[[], bool],
) -> list[dict[str, str]]:
    """Enable or disable mappings, and wait until each has that state, up to five minutes in all; return the results.

    A mapping that Lambda is changing already is changed after that. One that the guard has changed gets its former
    setting. ``progress`` is called about once a second with a line about each mapping that is not there yet.
    """
    client, clock = account.client("lambda"), current().clock
    done: dict[str, dict[str, str]] = {}
    asked: dict[str, str] = {}
    warn = cache(note)
    began = clock.monotonic()
    for looks in count():
        for each in mappings:
            if each.uuid not in done and (result := _step(client, each, asked, warn, enabled=enabled)) is not None:
                done[each.uuid] = result
        waiting = [each for each in mappings if each.uuid not in done]
        seconds = clock.monotonic() - began
        if not waiting or stop() or seconds >= WAIT_SECONDS:
            break
        for each in waiting:
            progress(f"{each}: waiting for Lambda ({seconds:.0f} s)")
        clock.sleep(min(looks, POLL_SECONDS))
    wanted = ENABLED if enabled else DISABLED
    why = "stopped" if stop() else f"not {wanted} after {WAIT_SECONDS} s; Lambda may still change it"
    for each in waiting:
        done[each.uuid] = each.result(str(client.get_event_source_mapping(UUID=each.uuid)["State"]), error=why)
    return [done[each.uuid] for each in mappings]


def _step(
    client: Any, first: Mapping, asked: dict[str, str], warn: Callable[[str], None], *, enabled: bool
) -> dict[str, str] | None:
    """Look, and ask for the state unless that was done; return the result, or None to look again later.

    ``asked``: the mappings whose change was asked for; what is restored of those that the guard has changed.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    from tarry.guard.operations import CannotGuard, hand_back, note_of, setting_of

    state, kept = first.state, None
    try:
        found = client.get_event_source_mapping(UUID=first.uuid)
        state = str(found["State"])
        if state == "Deleting":
            return first.result(state, error="it is being deleted")
        if state not in (ENABLED, DISABLED):
            return None
        try:
            kept = note_of(found, client)
        except ClientError as error:
            if not is_denied(error_code(error)):
                raise
            warn("lambda:ListTags is denied: if the guard has changed a MaximumConcurrency, it stays as it is.")
        done = setting_of(found).is_enabled == enabled
        if kept is not None:
            wanted = hand_back(found, kept, client, is_enabled=enabled)
            asked[first.uuid] = f"the guard's suspension has ended: {wanted}"
            done = setting_of(found) == wanted
        elif not done and first.uuid not in asked:
            client.update_event_source_mapping(UUID=first.uuid, Enabled=enabled)
            asked[first.uuid] = ""
        return first.result(state, asked.get(first.uuid, "")) if done else None
    except ClientError as error:
        return None if error_code(error) == IN_USE else first.result(state, error=str(error))
    except (BotoCoreError, CannotGuard) as error:
        return first.result(state, error=str(error))
