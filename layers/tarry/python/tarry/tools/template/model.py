"""The parts of a template as frozen values: queues, functions, mappings, permissions."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal
from uuid import NAMESPACE_URL, uuid5

from tarry.support.values import queue_arn


@dataclass(frozen=True)
class Statement:
    """A statement that allows actions on resources; both may contain wildcards.

    ``is_certain``: it is of the role, and its actions and resources are known. Otherwise it may allow less.
    """

    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    is_certain: bool = False

    def allows(self, action: str, queue: str | None) -> bool:
        return _any(self.actions, action) and (queue is None or _any(map(_name, self.resources), queue))


@dataclass(frozen=True)
class Permissions:
    """The statements that apply to a function. ``role`` is its role's logical id; None if SAM makes the role."""

    statements: tuple[Statement, ...]
    role: str | None = None

    def allow(self, action: str, queue: str | None = None, *, certainly: bool = False) -> bool:
        """Whether a statement allows the action, such as ``sqs:SendMessage``, on the queue with this name.

        Without a name, on any resource; ``certainly``: a statement of the role, without a condition.
        """
        return any(each.allows(action, queue) for each in self.statements if each.is_certain or not certainly)


def _name(resource: str) -> str:
    """Return the pattern for the name of a queue. Region and account of the stack are not known, so they all match."""
    parts = resource.split(":", 5)
    return parts[5] if len(parts) == 6 else "*" if set(resource) & set("*?") else ""


def _any(patterns: Iterable[str], text: str) -> bool:
    return any(_pattern(each).fullmatch(text) for each in patterns)


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.IGNORECASE)


ACCOUNT = "123456789012"
"""The account in ARNs: not a real one, and the default of moto."""

STACK_NAME = "tarry-local"
"""The value of ``AWS::StackName``: no stack has been deployed."""

DEFAULT_VISIBILITY_SECONDS = 30
DEFAULT_RETENTION_SECONDS = 4 * 86_400


class TemplateError(Exception):
    """The template cannot be read, or lacks a value. The text is one line with the place and the problem."""


@dataclass(frozen=True)
class TemplateQueue:
    """An SQS queue. ``attributes`` are those of ``CreateQueue``, without the redrive policy."""

    name: str
    arn: str
    logical_id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    dead_letter_arn: str | None = None
    max_receive_count: int = 10
    is_name_fixed: bool = True
    """Whether each deployment gives it this name; False if the stack or a parameter is part of it."""

    @property
    def title(self) -> str:
        """Its name in texts: the logical id if its name depends on the deployment."""
        return self.name if self.is_name_fixed else self.logical_id or self.name

    @property
    def is_fifo(self) -> bool:
        return self.name.endswith(".fifo")

    @property
    def is_known(self) -> bool:
        """Whether a template, or another queue of one, names it; the ARN is empty if not."""
        return bool(self.arn)

    @property
    def deduplicates_by_content(self) -> bool:
        return self.attributes.get("ContentBasedDeduplication") == "true"

    @property
    def visibility_timeout_seconds(self) -> int:
        return int(self.attributes.get("VisibilityTimeout", DEFAULT_VISIBILITY_SECONDS))

    @property
    def retention_seconds(self) -> int:
        return int(self.attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS))

    @property
    def delay_seconds(self) -> int:
        return int(self.attributes.get("DelaySeconds", 0))

    @property
    def receive_limit(self) -> int | None:
        """The receives after which SQS moves a message; None without a dead-letter queue."""
        return self.max_receive_count if self.dead_letter_arn else None

    @property
    def dead_letters(self) -> str | None:
        """The name of the dead-letter queue."""
        return queue_arn(self.dead_letter_arn).name or None


@dataclass(frozen=True)
class TemplateLayer:
    """A layer of a function: a directory on this machine, or an ARN. Without both, it is not known.

    ``build_method`` is that of `sam build`; None if the directory is the content of the layer. ``foreign`` is why a
    directory with the content is left out: its compiled modules are for another machine or another Python.
    """

    path: Path | None = None
    arn: str | None = None
    build_method: str | None = None
    foreign: str = ""


@dataclass(frozen=True)
class TemplateAsync:
    """The settings of a function for asynchronous invocations; the destinations are ARNs."""

    retries: int = 2
    on_success: str | None = None
    """The queue or function that gets a record of each success."""
    on_failure: str | None = None
    dead_letter_arn: str | None = None
    """The queue that gets the event of each invocation that failed."""


@dataclass(frozen=True)
class TemplateFunction:
    """A Lambda function. ``environment`` may contain intrinsics that only an endpoint can resolve (a table name).

    ``code`` is the directory of its code, None if the code is not on this machine.
    """

    logical_id: str
    name: str
    arn: str
    code: Path | None
    handler: str | None
    timeout_seconds: int = 3
    memory_mb: int = 128
    reserved_concurrency: int | None = None
    recursive_loop: Literal["Allow", "Terminate"] = "Terminate"
    """Whether Lambda stops the function when it sends to its own queue in a loop."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    unresolved: Mapping[str, str] = field(default_factory=dict)
    """The variables that cannot be resolved, by name, with the reason. To run the function, set their values."""
    all_layers: tuple[TemplateLayer, ...] = ()
    """A later one has precedence."""
    runtime: str | None = None
    build_method: str | None = None
    """The ``BuildMethod`` of `sam build`; None for the default of its runtime."""
    build_reason: str = field(default="", compare=False)
    """Why ``code`` is the output of ``sam build`` rather than the source; empty for the source."""
    other_code: Path | None = field(default=None, compare=False)
    """The source if ``code`` is its build, or the build of a makefile or esbuild that is newer than ``code``."""
    foreign_build: str = ""
    """Why the output of ``sam build`` is left out, although the source lacks packages."""
    lacking_packages: str = ""
    """The packages that the source lacks, with the command that installs them; empty if none, or if it has a build."""
    asynchronous: TemplateAsync = TemplateAsync()
    log_level: str | None = None
    """The level that Lambda gives the code; None for logs in text, for which it gives none."""
    permissions: Permissions | None = None
    """The permissions of its role on queues; None if the template does not show all of them."""

    @property
    def layers(self) -> tuple[Path, ...]:
        """The directories of the layers that are on this machine."""
        return tuple(each.path for each in self.all_layers if each.path is not None)

    @property
    def foreign(self) -> tuple[str, ...]:
        """The builds that are left out: they are for another machine or another Python. Each with the reason."""
        found = (self.foreign_build, *(each.foreign for each in self.all_layers))
        return tuple(dict.fromkeys(filter(None, found)))


@dataclass(frozen=True)
class TemplateMapping:
    """An event source mapping from a queue to a function."""

    logical_id: str
    queue_arn: str
    function: str
    """The name of the function."""
    batch_size: int = 10
    window_seconds: int = 0
    reports_failures: bool = False
    """Whether ``ReportBatchItemFailures`` is set; without it Lambda deletes a batch whatever its function returns."""
    maximum_concurrency: int | None = None
    qualifier: str = ""
    """The alias or version of the function; empty if the mapping names none."""
    filters: tuple[str | Mapping[str, Any], ...] = ()
    """The patterns of ``FilterCriteria`` as JSON; Lambda deletes messages that match none of them."""

    @property
    def queue(self) -> str:
        """The name of the queue."""
        return queue_arn(self.queue_arn).name

    @property
    def uuid(self) -> str:
        """Its UUID here, the value of its Ref; a stack has another one."""
        return str(uuid5(NAMESPACE_URL, self.logical_id or f"{self.queue} {self.function}"))

    @property
    def is_fifo(self) -> bool:
        return queue_arn(self.queue_arn).is_fifo


@dataclass(frozen=True)
class TemplateAlarm:
    """A CloudWatch alarm on a metric. ``queue`` is the name of the queue; None for another kind of metric."""

    logical_id: str
    metric: str
    queue: str | None


@dataclass(frozen=True)
class Checked:
    """The parts of a template that no run plays, and that only `tarry check` looks at."""

    alarms: tuple[TemplateAlarm, ...] = ()
    are_alarms_known: bool = True
    """Whether these are certainly all alarms: each is resolved, and no nested stack or macro can make others."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """The logical ids of the KMS keys that encrypt queues and leave permissions to IAM, by that of the queue."""
    pollers: Mapping[str, int | None] = field(default_factory=dict)
    """The most provisioned event pollers of mappings that have them, by logical id; None if it is not known."""
    macros: tuple[str, ...] = ()
    """The transforms that tarry does not know."""
    unknown: frozenset[str] = frozenset()
    """The properties that are set to a value that is not known, such as ``Queue.VisibilityTimeout``."""


@dataclass(frozen=True)
class Template:
    """A template for one region and the account `ACCOUNT`, with queues and functions by name."""

    path: Path
    region: str
    queues: Mapping[str, TemplateQueue]
    functions: Mapping[str, TemplateFunction]
    mappings: tuple[TemplateMapping, ...]
    backing: Mapping[str, Mapping[str, Any]]
    """The CloudFormation resources of tables, buckets, topics and keys, by logical id."""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """The parameters without a value that were needed, with the placeholders used instead."""
    defaulted: Mapping[str, str] = field(default_factory=dict)
    """The properties left out because they need a parameter without a value, with its name: AWS's defaults apply."""
    missing: tuple[str, ...] = ()
    """The names of all parameters without a value."""
    not_played: tuple[str, ...] = ()
    """The resources of SAM that tarry does not play, each with its type."""
    left_out: tuple[str, ...] = ()
    """The parts that cannot be resolved, each with its place and the reason."""
    checked: Checked = field(default=Checked(), compare=False)

    @property
    def unresolved_queues(self) -> str:
        """Why the queues of mappings cannot be resolved, as of another stack, with the remedy; empty if all can."""
        found = [each for each in self.left_out if ".EventSourceArn: " in each]
        return f"{'; '.join(found)}. Write the ARN of the queue, or a parameter, in its place" if found else ""

    def named(self, mapping: TemplateMapping) -> str:
        """Return a mapping as the template names it: the event of a function, or a resource of its own."""
        function = self.functions.get(mapping.function)
        event = mapping.logical_id.removeprefix(function.logical_id) if function else mapping.logical_id
        if function is None or event in ("", mapping.logical_id):
            return mapping.logical_id
        return f"the event {event} of {function.logical_id}"


def with_foreign_queues(template: Template) -> dict[str, TemplateQueue]:
    """Return the queues of the template by name, with default attributes for those it names only by ARN.

    Their visibility timeout is not known: see `unknown_visibility`.
    """
    named = [mapping.queue for mapping in template.mappings]
    named += [queue.dead_letters for queue in template.queues.values() if queue.dead_letters]
    arn = f"arn:aws:sqs:{template.region}:{ACCOUNT}:"
    foreign = {}
    for name in named:
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        visibility = unknown_visibility(name, template.mappings, template.functions)
        foreign[name] = TemplateQueue(name, arn + name, attributes=visibility | fifo)
    return foreign | dict(template.queues)


def unknown_visibility(
    queue: str, mappings: Iterable[TemplateMapping], functions: Mapping[str, TemplateFunction]
) -> dict[str, str]:
    """Return the visibility timeout of a queue for which it is not known; empty for SQS's default.

    It is at least as long as the longest timeout of its functions: AWS has accepted the mappings.
    """
    found = (functions.get(each.function) for each in mappings if each.queue == queue)
    longest = max((function.timeout_seconds for function in found if function is not None), default=0)
    return {"VisibilityTimeout": str(longest)} if longest > DEFAULT_VISIBILITY_SECONDS else {}


def dead_letter_cycles(queues: Mapping[str, TemplateQueue]) -> list[tuple[str, ...]]:
    """Return the cycles of dead-letter queues by name, each once, from the queue that comes first in the template."""
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for name, queue in queues.items():
        seen, target = [name], queue.dead_letters
        while target is not None and target not in seen:
            seen.append(target)
            target = queues[target].dead_letters if target in queues else None
        if target == name:
            found.setdefault(frozenset(seen), tuple(seen))
    return list(found.values())


def make_queues(sqs: Any, queues: Iterable[TemplateQueue]) -> dict[str, str]:
    """Create the queues, then set their redrive policies; return their URLs by name. Idempotent."""
    queues = list(queues)
    urls = {
        queue.name: sqs.create_queue(QueueName=queue.name, Attributes=dict(queue.attributes))["QueueUrl"]
        for queue in queues
    }
    for queue in queues:
        if queue.dead_letters:
            target = queue_arn(queue.arn).sibling(queue.dead_letters)
            policy = {"deadLetterTargetArn": str(target), "maxReceiveCount": queue.max_receive_count}
            sqs.set_queue_attributes(QueueUrl=urls[queue.name], Attributes={"RedrivePolicy": json.dumps(policy)})
    return urls
