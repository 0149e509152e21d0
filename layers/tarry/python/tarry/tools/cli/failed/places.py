"""Where a command acts: at AWS, or at an SQS on this machine, by its options and the environment."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from tarry.failed.queue_names import endpoint_host
from tarry.failed.usage import UsageError
from tarry.tools.cli.options import LOCAL_HOST, LOCAL_URL
from tarry.tools.common.places import is_aws, place_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.tools.cli.failed.prompts import Stopping
    from tarry.tools.cli.options import TargetOptions

LOCAL_REGION = "us-east-1"


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
        if (url := _endpoint_of_environment()) is None:
            raise
        return url  # no profile is needed there


def at_place(where: TargetOptions, queues: Sequence[str] = ()) -> TargetOptions:
    """Return the options with the endpoint of the place that they say.

    ``--local``, ``--port``, ``--aws``, ``--endpoint-url``, ``--stack``, a configured endpoint and the URL of a queue
    say where. Otherwise it is the `tarry local` that runs the template, if there is one and no region or profile is
    given, or AWS.

    Args:
        where: The options.
        queues: The names or URLs of queues, if the command takes several.

    Raises:
        UsageError: the options contradict each other.
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
    from tarry.tools.cli.failed.prompts import has_terminal

    if not where.is_placed and (force or not has_terminal()):
        raise UsageError(
            "say where to do this: --local, --aws, --stack NAME or --endpoint-url URL (without one of them it would be "
            f"{place_text(requests_go_to(where), region=where.region)}); nothing was changed"
        )


def confirms_place(where: TargetOptions, question: str, stopping: Stopping | None = None) -> bool:
    """Whether the user said where to act, or says yes to a question that names the place."""
    if where.is_placed:
        return True
    from tarry.tools.cli.failed.prompts import Stopping, confirms

    return confirms(Console(file=sys.stderr, highlight=False), stopping or Stopping(), question)


def ignores_configured(where: TargetOptions) -> bool:
    """Whether an endpoint of the environment or the profile is ignored: with ``--aws``, if that one is not AWS."""
    return where.aws and not is_aws(_chosen_endpoint(where, ignored=False))


def _endpoint_of_environment() -> str | None:
    return os.environ.get("AWS_ENDPOINT_URL_SQS") or os.environ.get("AWS_ENDPOINT_URL") or None


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
        return _endpoint_of_environment() is not None


def _of_tarry_local(where: TargetOptions) -> str | None:
    """Return the URL of the `tarry local` that runs the template; None if there is none."""
    try:
        from tarry.tools.local.instances import instance_here, instance_of

        found = instance_of(where.template) if where.template else instance_here()
    except ModuleNotFoundError:  # of the extra that reads templates
        return None
    return found.url if found else None
