"""The options of all commands, and the parsing of their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tarry.failed import Selection
from tarry.failed.inspection import KEEPALIVE_SECONDS
from tarry.message.outcomes import State
from tarry.sqs.client import MAX_PARALLEL

LOCAL_HOST = "127.0.0.1"
LOCAL_URL = f"http://{LOCAL_HOST}:4576"
"""The SQS of `tarry local`."""

REQUIRED = MISSING
"""The default of an option or argument that must be given."""
OPTION = "option"


def option(spec: str, help: str, default: Any = None, **settings: Any) -> Any:
    """Return an option, as the default of a parameter or of a field of a group.

    Args:
        spec: Its names, and the metavar of its value: ``--queue -q NAME|URL``.
        help: The text of the help.
        default: Its value if it is not given, or `REQUIRED`.
        settings: The other settings of `typer.Option`, such as ``min``.
    """
    names = [each for each in spec.split() if each.startswith("-")]
    metavar = " ".join(spec.split()[len(names) :]) or None
    return field(default=default, metadata={OPTION: typer.Option(*names, metavar=metavar, help=help, **settings)})


def argument(metavar: str, help: str, default: Any = None) -> Any:
    """Return an argument, as `option` does an option."""
    return field(default=default, metadata={OPTION: typer.Argument(metavar=metavar, help=help)})


TEMPLATE = option(
    "--template -t FILE",
    "The SAM or CloudFormation template; by default template.yaml, .yml or .json, or what sam build or cdk synth has "
    "made.",
)
PARAMETERS = option("--parameter -p NAME=VALUE", "The value of a template parameter; repeatable.")
CONFIG_ENV = option(
    "--config-env NAME", "The environment of samconfig.toml or .yaml with the parameters; by default default."
)
ENV = option("--env FILE|NAME=VALUE", "Environment variables that override the template; repeatable.")
LOCAL = option("--local", f"Use the tarry local that runs the template here, or else the one at {LOCAL_URL}.", False)
PORT = option("--port N", "Use the tarry local on this port.", min=1, max=65535)
AWS = option("--aws", "Use AWS, with your usual AWS settings.", False)
AS_JSON = option("--json", "Print one JSON object per line.", False)

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


TEMPLATE_FILE = option(
    "--template -t FILE",
    "All dead-letter queues of a template; by default of the stack in samconfig.toml or .yaml, or else of the template "
    "in this directory.",
)
ENDPOINT_URL = option("--endpoint-url URL", "Use the SQS at this address.")
REGION = option("--region REGION", "The AWS region.")
PROFILE = option("--profile NAME", "The AWS profile.")
KEEPALIVE = option(
    "--keepalive SECONDS",
    "Extend visibility timeouts of inspected dead letters, three times SECONDS or more, in their last third.",
    KEEPALIVE_SECONDS,
    min=1,
    max=14400,
)
ALL = option("--all", "Select all dead letters.", False)
FORCE = option("--force -f", "Do not ask for confirmation.", False)
AUDIT = option(
    "--audit FILE", "Append the audit line of this run to FILE; by default to ~/.local/state/tarry/audit.jsonl."
)


# groups of options


@dataclass(frozen=True)
class AwsOptions:
    """Where requests go."""

    local: bool = LOCAL
    aws: bool = AWS
    endpoint_url: str | None = ENDPOINT_URL
    region: str | None = REGION
    profile: str | None = PROFILE


@dataclass(frozen=True)
class TargetOptions:
    """The dead-letter queues, and where they are."""

    queue: str | None = option("--queue -q NAME|URL", "The dead-letter queue.")
    template: Path | None = TEMPLATE_FILE
    stack: str | None = option("--stack NAME", "All dead-letter queues of a deployed stack.")
    parameter: list[str] | None = PARAMETERS
    local: bool = LOCAL
    port: int | None = PORT
    aws: bool = AWS
    endpoint_url: str | None = ENDPOINT_URL
    region: str | None = REGION
    profile: str | None = PROFILE
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

    ids: list[str] | None = argument("ID", "Stable ids or SQS message ids, or the beginning of one if it is unique.")
    where: list[str] | None = option(
        "--where -w 'FIELD OP VALUE'",
        "Select by a condition; repeatable, all must match. FIELD: type, reason, attempts, failed_at, origin, "
        "fingerprint, message, said, body, attributes, extra, or a JMESPath into them; "
        "OP: = != < <= > >= ~ (regular expression); VALUE: JSON or text, null for a missing field.",
    )
    group: str | None = option("--group -g FINGERPRINT", "Select the dead letters that failed in the same way.")
    since: str | None = option(
        "--since TIME|DURATION", "Select those dead-lettered since a time, or within a duration: 2h."
    )
    until: str | None = option("--until TIME|DURATION", "Select those dead-lettered before a time, or 2h ago.")

    def selection(self, *, everything: bool = False) -> Selection:
        """Return them as a selection. Raises `ConfigurationError`."""
        from tarry.failed import select

        times = {"since": self.since, "until": self.until}
        return select(self.ids or (), self.where or (), everything=everything, group=self.group, **times)


@dataclass(frozen=True)
class PaceOptions:
    """How fast dead letters are retried, and when to stop."""

    canary: int | None = option("--canary N", "Retry N first, and the others only if none of these comes back.", min=1)
    within: str | None = option(
        "--within DURATION",
        "How long to watch the canaries; by default the longest time that they took from first failure to "
        "dead letter, plus the visibility timeout of their queue.",
    )
    rate: str | None = option("--rate N/s", "Retry at most N a second; also N/m and N/h.")
    max_return: str | None = option("--max-return N%", "Stop when more than N% of the retried messages came back.")


@dataclass(frozen=True)
class ChangeOptions:
    """How a command that changes dead letters asks, reports and sends requests."""

    force: bool = FORCE
    as_json: bool = AS_JSON
    keepalive: float = KEEPALIVE
    concurrency: int = option("--concurrency N", "Send up to N requests at once.", 1, min=1, max=MAX_PARALLEL)


@dataclass(frozen=True)
class ArchiveOptions:
    """Where removed dead letters are kept, and the queues that may be emptied."""

    archive: Path | None = option(
        "--archive FILE",
        "Write dead letters to FILE before they are deleted; by default to a new file in ~/.local/state/tarry/removed.",
    )
    no_archive: bool = option("--no-archive", "Keep no copy of the dead letters: they cannot be restored.", False)
    yes_delete: list[str] | None = option(
        "--yes-delete QUEUE", "With --all at AWS: the name of the queue to empty, instead of typing it; repeatable."
    )


@dataclass(frozen=True)
class SqsOptions:
    """The SQS of a command that takes any queue."""

    local: bool = LOCAL
    port: int | None = PORT
    aws: bool = AWS
    stack: str | None = option("--stack NAME", "The queues of a deployed stack, also by logical id.")
    endpoint_url: str | None = ENDPOINT_URL


@dataclass(frozen=True)
class ProjectOptions:
    """The template, and what it does not say itself."""

    template: Path | None = TEMPLATE
    parameter: list[str] | None = PARAMETERS
    config_env: str | None = CONFIG_ENV
    env: list[str] | None = ENV

    @property
    def parameters(self) -> dict[str, str]:
        return pairs(self.parameter or [], "--parameter")


def flat(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes each option of its groups, such as `AwsOptions`, as a parameter of its own."""
    parameters = signature(function, eval_str=True).parameters
    groups = {
        name: _options(each.annotation)
        for name, each in parameters.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }
    shown: list[Parameter] = []
    for name, each in parameters.items():
        is_option = isinstance(each.default, Field)
        own = _option(name, each.annotation, each.default) if is_option else each.replace(kind=Parameter.KEYWORD_ONLY)
        shown += groups.get(name, [own])

    @wraps(function)
    def command(**given: Any) -> None:
        for name, options in groups.items():
            group = parameters[name].annotation
            given[name] = group(**{option.name: given.pop(option.name) for option in options})
        function(**given)

    command.__signature__ = signature(command).replace(parameters=shown)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in shown}
    return command


def _options(group: type[Any]) -> list[Parameter]:
    hints = get_type_hints(group)
    return [_option(each.name, hints[each.name], each) for each in fields(group) if OPTION in each.metadata]


def _option(name: str, hint: Any, described: Field[Any]) -> Parameter:
    default = Parameter.empty if described.default is REQUIRED else described.default
    annotation = Annotated[hint, described.metadata[OPTION]]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
