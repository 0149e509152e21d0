"""The options of all commands, and the parsing of their values."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

import typer

from tarry.failed.inspection import KEEPALIVE_SECONDS
from tarry.message.outcomes import State
from tarry.sqs.client import MAX_PARALLEL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tarry.failed import Selection

LOCAL_HOST = "127.0.0.1"
LOCAL_URL = f"http://{LOCAL_HOST}:4576"
"""The SQS of `tarry local`."""

Template = Annotated[
    Path | None,
    typer.Option(
        "--template",
        "-t",
        metavar="FILE",
        help="The SAM or CloudFormation template; by default template.yaml, .yml or .json, or what sam build or "
        "cdk synth has made.",
    ),
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="The value of a template parameter; repeatable."),
]
ConfigEnv = Annotated[
    str | None,
    typer.Option(
        "--config-env",
        metavar="NAME",
        help="The environment of samconfig.toml or .yaml with the parameters; by default default.",
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env", metavar="FILE|NAME=VALUE", help="Environment variables that override the template; repeatable."
    ),
]
Local = Annotated[
    bool,
    typer.Option("--local", help=f"Use the tarry local that runs the template here, or else the one at {LOCAL_URL}."),
]
LocalPort = Annotated[
    int | None, typer.Option("--port", metavar="N", min=1, max=65535, help="Use the tarry local on this port.")
]
Aws = Annotated[bool, typer.Option("--aws", help="Use AWS, with your usual AWS settings.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

# of `tarry failed`


class Grouping(StrEnum):
    """The property that the dead letters of a group have in common."""

    fingerprint = "fingerprint"
    error = "error"
    type = "type"
    queue = "queue"
    reason = "reason"


class Via(StrEnum):
    """The ways to retry a dead letter."""

    queue = "queue"
    local = "local"
    aws = "aws"


TemplateFile = Annotated[
    Path | None,
    typer.Option(
        "--template",
        "-t",
        metavar="FILE",
        help="All dead-letter queues of a template; by default of the stack in samconfig.toml or .yaml, or else of the "
        "template in this directory.",
    ),
]
EndpointUrl = Annotated[str | None, typer.Option("--endpoint-url", metavar="URL", help="Use the SQS at this address.")]
Region = Annotated[str | None, typer.Option("--region", metavar="REGION", help="The AWS region.")]
Profile = Annotated[str | None, typer.Option("--profile", metavar="NAME", help="The AWS profile.")]
Keepalive = Annotated[
    float,
    typer.Option(
        "--keepalive",
        metavar="SECONDS",
        min=1,
        max=14400,
        help="Extend visibility timeouts of inspected dead letters, three times SECONDS or more, in their last third.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Select all dead letters.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Do not ask for confirmation.")]
Audit = Annotated[
    Path | None,
    typer.Option(
        "--audit",
        metavar="FILE",
        help="Append the audit line of this run to FILE; by default to ~/.local/state/tarry/audit.jsonl.",
    ),
]


# groups of options


@dataclass(frozen=True)
class AwsOptions:
    """Where requests go."""

    local: Local = False
    aws: Aws = False
    endpoint_url: EndpointUrl = None
    region: Region = None
    profile: Profile = None


@dataclass(frozen=True)
class TargetOptions:
    """The dead-letter queues, and where they are."""

    queue: Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME|URL", help="The dead-letter queue.")] = (
        None
    )
    template: TemplateFile = None
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="NAME", help="All dead-letter queues of a deployed stack.")
    ] = None
    parameter: Parameters = None
    local: Local = False
    port: LocalPort = None
    aws: Aws = False
    endpoint_url: EndpointUrl = None
    region: Region = None
    profile: Profile = None
    is_placed: bool = False
    """Whether the user said where to act. Set by `tarry.tools.cli.failed.targets.at_place`; no option."""

    def __post_init__(self) -> None:
        _ = self.parameters  # raises for a wrong value

    @property
    def parameters(self) -> dict[str, str]:
        return pairs(self.parameter or [], "--parameter")


@dataclass(frozen=True)
class Selected:
    """The dead letters that a command is about."""

    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Stable ids or SQS message ids, or the beginning of one if it is unique."),
    ] = None
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            "-w",
            metavar="'FIELD OP VALUE'",
            help="Select by a condition; repeatable, all must match. FIELD: type, reason, attempts, failed_at, origin, "
            "fingerprint, message, said, body, attributes, extra, or a JMESPath into them; "
            "OP: = != < <= > >= ~ (regular expression); VALUE: JSON or text, null for a missing field.",
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="FINGERPRINT", help="Select the dead letters that failed in the same way."
        ),
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME|DURATION",
            help="Select those dead-lettered since a time, or within a duration: 2h.",
        ),
    ] = None
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME|DURATION", help="Select those dead-lettered before a time, or 2h ago."),
    ] = None

    def selection(self, *, everything: bool = False) -> Selection:
        """Return them as a selection. Raises `ConfigurationError`."""
        from tarry.failed import select

        times = {"since": self.since, "until": self.until}
        return select(self.ids or (), self.where or (), everything=everything, group=self.group, **times)


@dataclass(frozen=True)
class PaceOptions:
    """How fast dead letters are retried, and when to stop."""

    canary: Annotated[
        int | None,
        typer.Option(
            "--canary", metavar="N", min=1, help="Retry N first, and the others only if none of these comes back."
        ),
    ] = None
    within: Annotated[
        str | None,
        typer.Option(
            "--within",
            metavar="DURATION",
            help="How long to watch the canaries; by default the longest time that they took from first failure to "
            "dead letter, plus the visibility timeout of their queue.",
        ),
    ] = None
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/s", help="Retry at most N a second; also N/m and N/h.")
    ] = None
    max_return: Annotated[
        str | None,
        typer.Option("--max-return", metavar="N%", help="Stop when more than N% of the retried messages came back."),
    ] = None


@dataclass(frozen=True)
class ChangeOptions:
    """How a command that changes dead letters asks, reports and sends requests."""

    force: Force = False
    as_json: AsJson = False
    keepalive: Keepalive = KEEPALIVE_SECONDS
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, max=MAX_PARALLEL, help="Send up to N requests at once.")
    ] = 1


@dataclass(frozen=True)
class ArchiveOptions:
    """Where removed dead letters are kept, and the queues that may be emptied."""

    archive: Annotated[
        Path | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="Write dead letters to FILE before they are deleted; by default to a new file in "
            "~/.local/state/tarry/removed.",
        ),
    ] = None
    no_archive: Annotated[
        bool, typer.Option("--no-archive", help="Keep no copy of the dead letters: they cannot be restored.")
    ] = False
    yes_delete: Annotated[
        list[str] | None,
        typer.Option(
            "--yes-delete",
            metavar="QUEUE",
            help="With --all at AWS: the name of the queue to empty, instead of typing it; repeatable.",
        ),
    ] = None


@dataclass(frozen=True)
class SqsOptions:
    """The SQS of a command that takes any queue."""

    local: Local = False
    port: LocalPort = None
    aws: Aws = False
    stack: Annotated[
        str | None, typer.Option("--stack", metavar="NAME", help="The queues of a deployed stack, also by logical id.")
    ] = None
    endpoint_url: EndpointUrl = None


@dataclass(frozen=True)
class ProjectOptions:
    """The template, and what it does not say itself."""

    template: Template = None
    parameter: Parameters = None
    config_env: ConfigEnv = None
    env: Env = None

    @property
    def parameters(self) -> dict[str, str]:
        return pairs(self.parameter or [], "--parameter")


def flat(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes each option of its groups, such as `AwsOptions`, as a parameter of its own."""
    parameters = signature(function, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in parameters.items() if is_dataclass(each.annotation)
    }
    shown: list[Parameter] = []
    for name, each in parameters.items():
        shown += _options(groups[name]) if name in groups else [each.replace(kind=Parameter.KEYWORD_ONLY)]

    @wraps(function)
    def command(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option.name: given.pop(option.name) for option in _options(group)})
        function(**given)

    command.__signature__ = signature(command).replace(parameters=shown)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in shown}
    return command


def _options(group: type[Any]) -> Iterator[Parameter]:
    for name, hint in get_type_hints(group, include_extras=True).items():
        if get_origin(hint) is Annotated:
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(group, name), annotation=hint)


# parsing


def pairs(values: list[str], option: str) -> dict[str, str]:
    """Parse the values of an option that takes ``NAME=VALUE``, such as ``--parameter``."""
    for each in values:
        if not each.partition("=")[0] or "=" not in each:
            raise typer.BadParameter(f"{option} must be NAME=VALUE, got {each!r}")
    return {name: value for name, _, value in (each.partition("=") for each in values)}


def expected_states(text: str) -> dict[str, int]:
    """Parse the value of ``--expect``: the number of messages by final state, as in ``committed=8,dead_lettered=2``."""
    expected: dict[str, int] = {}
    for each in filter(None, text.split(",")):
        state, _, number = (part.strip() for part in each.partition("="))
        if state.upper() not in State.__members__ or not number.isdecimal():
            states = ", ".join(state.lower() for state in State)
            raise typer.BadParameter(f"--expect must be STATE=N,..., got {each!r}; the states are {states}")
        expected[state.upper()] = int(number)
    return expected
