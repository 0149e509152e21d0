"""`tarry queues`: list the queues with their numbers of messages."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarry.failed.queue_names import DEFAULT_TEMPLATE, existing_queues, names_resource, queue_name, stack_queues
from tarry.failed.usage import UsageError
from tarry.tools.cli.errors import libraries, note, refuse
from tarry.tools.cli.failed.targets import at_place, check_placed, confirms_place, requests_go_to
from tarry.tools.cli.options import AS_JSON, LOCAL_URL, SqsOptions, TargetOptions, argument
from tarry.tools.common.places import is_aws, place_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tarry.tools.local.aws.client import QueueDepth


class SqsConnection(NamedTuple):
    """A boto3 client of SQS, and the options that say where it sends requests."""

    client: Any
    where: TargetOptions

    def say_place(self, queue_url: str | None = None) -> str:
        """Write where requests go to stderr, and return it; the account is that of a queue."""
        parts = (queue_url or "").split("/")
        text = place_text(place(self.client), parts[3] if len(parts) > 3 else None, self.client.meta.region_name)
        note(text)
        return text

    def confirm(self, action: str, queue: str) -> None:
        """Say where a message goes; ask at the terminal if the user did not say it, and end the command after a no."""
        url = None
        if is_aws(place(self.client)):
            url = queue if "://" in queue else self.client.get_queue_url(QueueName=queue_name(queue))["QueueUrl"]
        text = self.say_place(url)
        if not confirms_place(self.where, f"{action} to {queue} at {text}?"):
            raise typer.Exit(0)


@contextmanager
def sqs_at(command: str, where: TargetOptions, *, sends: bool = False) -> Iterator[SqsConnection]:
    """Yield a connection to the SQS that the options select. ``sends``: the command must know where, or ask.

    An error within the context becomes one line on stderr, with exit code 2 for wrong input, 1 for an error of SQS.
    """
    with libraries(command, "local"):
        from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError, ReadTimeoutError
        from botocore.exceptions import ConnectionError as NotConnected

        from tarry.sqs.refusals import error_code, is_no_queue
        from tarry.tools.cli.failed.targets import AwsAccess
        from tarry.tools.local.aws.client import sqs_client
    from tarry.errors import SendError

    client: Any = None
    try:
        where = at_place(where)
        if sends:
            check_placed(where)
        url = requests_go_to(where)
        # Tried once: a send that is repeated after a lost answer would be two messages.
        client = AwsAccess(where).client("sqs", retries={"total_max_attempts": 1}) if is_aws(url) else sqs_client(url)
        yield SqsConnection(client, where)
    except (NotConnected, ConnectionClosedError, ReadTimeoutError) as error:
        refuse(
            f"no SQS answers at {place(client)}: start tarry local, or say where (--aws, --endpoint-url URL) ({error})",
            1,
        )
    except ClientError as error:
        if is_no_queue(error_code(error)):
            existing = _queues(client, where.queue or "")
            refuse(f"queue {where.queue!r} does not exist at {place(client)}{existing}")
        refuse(f"SQS at {place(client)}: {error}", 1)
    except (BotoCoreError, SendError) as error:
        refuse(str(error), 1)
    except (UsageError, ValueError, TypeError) as error:
        refuse(str(error))


def say_endpoint(url: str) -> None:
    """Write to stderr where the requests of `tarry local`, or of a function, to an endpoint URL go.

    Raises `UsageError`.
    """
    from botocore.exceptions import NoRegionError

    from tarry.tools.cli.failed.targets import AwsAccess
    from tarry.tools.local.aws.client import client_at

    try:
        region = client_at(url, "sqs").meta.region_name
    except NoRegionError as error:
        raise UsageError(f"no AWS region is set for {url}: set AWS_REGION") from error
    AwsAccess(TargetOptions(endpoint_url=url, region=region, aws=is_aws(url))).say_place()


def queue_at(client: Any, queue: str, stack: str | None) -> str:
    """Return a queue as its SQS knows it: a logical id, of a stack or of the template here, becomes a name.

    Raises `UsageError`.
    """
    if stack is not None:
        queues = queues_of_stack(client, stack)
        found = queue_name(queues.get(queue, queue))
        if found not in map(queue_name, queues.values()):
            raise UsageError(f"stack {stack} has no queue {queue!r}{existing_queues(queue, sorted(queues))}")
        return found
    if is_aws(place(client)) or not names_resource(DEFAULT_TEMPLATE, queue):
        return queue
    from tarry.tools.template import TemplateError, read_template

    try:
        template = read_template(DEFAULT_TEMPLATE, lenient=True)
    except TemplateError:
        return queue
    return next((each.name for each in template.queues.values() if each.logical_id == queue), queue)


def queues_of_stack(client: Any, stack: str) -> dict[str, str]:
    """Return the URLs of the queues of a deployed stack, by logical id. Raises `UsageError`."""
    from tarry.tools.local.aws.client import client_at
    from tarry.tools.local.instances import instance_here

    instance = instance_here()
    if place(client) in (LOCAL_URL, instance and instance.url):
        raise UsageError(f"tarry local has no stacks: add --aws for the stack {stack} on AWS")
    return stack_queues(client_at(None if is_aws(place(client)) else place(client), "cloudformation"), stack)


def place(client: Any) -> str:
    return str(client.meta.endpoint_url)


def _queues(client: Any, wanted: str) -> str:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        urls = client.list_queues(MaxResults=20).get("QueueUrls") or []
    except (BotoCoreError, ClientError):
        return "; its queues cannot be listed"
    return existing_queues(wanted, sorted(map(queue_name, urls))) or "; it has no queues"


EXAMPLE = """\
tarry queues
tarry queues orders OrdersDeadLetters --json
tarry queues --stack shop-dev"""
WIDE_ENOUGH = 250  # names are up to 80 characters long


def queues(
    *,
    names: list[str] | None = argument(
        "QUEUE", "Names, URLs or ARNs of queues, or their logical ids in template.yaml; by default all queues."
    ),
    options: SqsOptions,
    as_json: bool = AS_JSON,
) -> None:
    """List the queues with their numbers of messages.

    Without --local, --aws, --stack or --endpoint-url: the queues of the `tarry local`
    that runs the template in this directory, or else of AWS. The first line says which.

    The columns are messages ready, in flight (received, or waiting for a retry)
    and delayed, and the age of the oldest, which only `tarry local` provides.
    SQS counts messages approximately.

    If Lambda may be asked, the lines below the table are the queues whose consumer
    the outage guard has suspended.

    Exit code: 0 success, 1 SQS cannot be reached or refuses, 2 wrong usage.
    """
    url = next((each for each in names or [] if "://" in each), None)
    where, stack = TargetOptions(url, **vars(options)), options.stack
    with sqs_at("tarry queues", where) as sqs:
        from tarry.tools.cli.failed.targets import AwsAccess
        from tarry.tools.local.aws.client import queue_depths

        wanted = [queue_at(sqs.client, each, stack) for each in names or []]
        if stack is not None and not names:
            wanted = [*queues_of_stack(sqs.client, stack).values()]
        depths = queue_depths(sqs.client)
        place = sqs.say_place(depths[0].url if depths else None)
        if names or stack is not None:
            depths = _selected(depths, wanted)
        suspensions = AwsAccess(sqs.where).suspensions() if depths else {}
    now = time.time()
    if as_json:
        for depth in depths:
            fields = asdict(depth)
            fields["oldest_seconds"] = _age(fields.pop("oldest"), now)
            fields["guard"] = suspensions.get(depth.name)
            typer.echo(json.dumps(fields))
    elif depths:
        _print(depths, now)
        for depth in depths:
            if text := suspensions.get(depth.name):
                typer.echo(f"{depth.name}: {text}")
    else:
        note(f"no queues at {place}")


def _selected(depths: Sequence[QueueDepth], wanted: Sequence[str]) -> list[QueueDepth]:
    """Return the wanted queues. Raises `UsageError` for one that does not exist."""
    found = {depth.name: depth for depth in depths}
    for each in wanted:
        if queue_name(each) not in found:
            raise UsageError(f"there is no queue {each!r}{existing_queues(each, list(found))}")
    return [found[name] for name in dict.fromkeys(map(queue_name, wanted))]


def _print(depths: Sequence[QueueDepth], now: float) -> None:
    from tarry.failed.text import duration

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE_ENOUGH
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("QUEUE", overflow="fold")
    for name in ("READY", "IN FLIGHT", "DELAYED", "OLDEST"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("DEAD-LETTER QUEUE", overflow="fold")
    for depth in depths:
        age = _age(depth.oldest, now)
        table.add_row(
            Text(depth.name, "bold" if depth.messages else ""),
            *(Text(f"{count:,}", "" if count else "dim") for count in (depth.ready, depth.in_flight, depth.delayed)),
            Text("-", "dim") if age is None else duration(age),
            Text(depth.dead_letter_queue or "-", "" if depth.dead_letter_queue else "dim"),
        )
    console.print(table)


def _age(oldest: float | None, now: float) -> int | None:
    return None if oldest is None else max(0, int(now - oldest))
