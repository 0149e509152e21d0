"""The facts on which the rules of `tarry check` decide. A fact that is not certain is None."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tarry.support.values import queue_arn
from tarry.tools.check.finding import At
from tarry.tools.check.sources import ConsumerCode
from tarry.tools.template.model import Permissions, TemplateAlarm

BROUGHT = frozenset(
    "awslambdaric bootstrap boto3 botocore dateutil jmespath pip runtime_client s3transfer simplejson six "
    "snapshot_restore_py urllib3".split()
)
"""The SDK with its dependencies, the runtime client with its own, and pip."""
BROUGHT_UNTIL_3_11 = frozenset({"pkg_resources", "setuptools"})

REMOVED = {
    (3, 12): frozenset({"asynchat", "asyncore", "distutils", "imp", "smtpd"}),
    (3, 13): frozenset(
        "aifc audioop cgi cgitb chunk crypt imghdr lib2to3 mailcap msilib nis nntplib ossaudiodev pipes sndhdr spwd "
        "sunau telnetlib uu xdrlib".split()
    ),
}
"""The modules that a version of Python removed from the standard library."""


Version = tuple[int, int]


def version_of(runtime: str | None) -> Version | None:
    """Return the version of a runtime such as ``python3.13``; None for another language, or if it is not known."""
    found = re.fullmatch(r"python(\d+)\.(\d+)", runtime or "")
    return (int(found[1]), int(found[2])) if found else None


def text_of(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def is_brought(module: str, version: Version) -> bool:
    """Whether the runtime has a top-level module: from the standard library, or beside it."""
    if is_removed(module, version):
        return False
    brought = BROUGHT if version >= (3, 12) else BROUGHT | BROUGHT_UNTIL_3_11
    return module in sys.stdlib_module_names or module in brought or module.startswith("_")


def is_removed(module: str, version: Version) -> bool:
    """Whether a version of Python, or one before it, removed a module from the standard library."""
    return any(module in gone and since <= version for since, gone in REMOVED.items())


DAYS = 86_400
DEFAULT_RETENTION_SECONDS = 4 * DAYS
LONGEST_RETENTION_SECONDS = 14 * DAYS


@dataclass(frozen=True)
class CheckedQueue:
    """A queue."""

    name: str
    at: At
    logical_id: str | None = None
    visibility_seconds: int | None = None
    retention_seconds: int | None = None
    maximum_bytes: int | None = None
    has_redrive: bool | None = None
    """Whether SQS moves messages to a dead-letter queue."""
    dead_letters: str | None = None
    """The name of this dead-letter queue."""
    max_receive_count: int | None = None
    key: str | None = None
    """The KMS key that encrypts it and leaves permissions to IAM, if it has one."""
    is_name_fixed: bool = True
    """Whether each deployment gives it this name."""

    @property
    def title(self) -> str:
        """Its name in texts: the logical id if its name depends on the deployment."""
        return self.name if self.is_name_fixed else self.logical_id or self.name

    @property
    def is_fifo(self) -> bool:
        """Whether it is FIFO, from its name."""
        return self.name.endswith(".fifo")

    @property
    def name_in_template(self) -> str:
        """Its name as a value of a template."""
        return f"!GetAtt {self.logical_id}.QueueName" if self.logical_id else self.name


@dataclass(frozen=True)
class CheckedFunction:
    """A function that consumes a queue."""

    name: str
    """Its logical id, or its name if it is deployed."""
    at: At
    timeout_seconds: int | None = None
    memory_mb: int | None = None
    reserved_concurrency: int | None = None
    """None also if it reserves none."""
    allows_loops: bool | None = None
    """Whether its ``RecursiveLoop`` is ``Allow``."""
    tells_of_loops: bool | None = None
    """Whether its environment tells tarry of it."""
    runtime: str | None = None
    permissions: Permissions | None = None
    code: ConsumerCode | None = None
    """Its consumer, if it certainly is one of tarry."""
    lists_failures: bool = False
    """Whether its response certainly lists the messages that failed."""
    calls: frozenset[str] | None = None
    """The names of all methods that its own code calls; None if the code is not known."""
    has_dead_letter_config: bool = False
    """Whether it has a dead-letter queue for asynchronous invocations."""


@dataclass(frozen=True)
class CheckedMapping:
    """An event source mapping from a queue to a function."""

    name: str
    at: At
    queue: str
    function: CheckedFunction | None
    batch_size: int | None = None
    window_seconds: int | None = None
    reports_failures: bool | None = None
    most_invocations: int | None = None
    """The most invocations that it makes at once, of all that it can make: 1,250 without a limit."""

    @property
    def is_fifo(self) -> bool:
        """Whether its queue is FIFO."""
        return self.queue.endswith(".fifo")

    @property
    def consumer(self) -> str:
        """The function as text."""
        return self.function.name if self.function else "its function"


@dataclass(frozen=True)
class WideSend:
    """A send in the code of a function with ten or more message attributes."""

    function: str
    file: Path
    line: int
    attributes: int


@dataclass(frozen=True)
class Facts:
    """All facts: queues by name, mappings, alarms."""

    queues: Mapping[str, CheckedQueue]
    mappings: tuple[CheckedMapping, ...]
    alarms: tuple[TemplateAlarm, ...] = ()
    are_alarms_known: bool = True
    wide_sends: tuple[WideSend, ...] = field(default=())

    def title_of(self, queue: str) -> str:
        """Return the name of a queue in texts."""
        return self.queues[queue].title if queue in self.queues else queue

    @property
    def consumers(self) -> int:
        """The number of functions with a queue."""
        return len({each.function.name for each in self.mappings if each.function is not None})

    def consumers_of(self, queue: str) -> tuple[CheckedMapping, ...]:
        """Return the mappings from a queue."""
        return tuple(each for each in self.mappings if each.queue == queue)


def name_of(arn: str | None) -> str | None:
    """Return the name of a queue from its ARN."""
    return queue_arn(arn).name or None
