"""The facts on which the rules of `tarry check` decide. A fact that is not certain is None."""

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tarry.tools.check.consumers import ConsumerCode, ConsumerFinder, Step, is_consumer
from tarry.tools.check.finding import At, Places
from tarry.tools.check.sources import SourceFile, Sources, uses_of
from tarry.tools.simulator.mapping_settings import MOST_POLLERS
from tarry.tools.template import Template, TemplateFunction, TemplateMapping, TemplateQueue

if TYPE_CHECKING:
    from pathlib import Path

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
LONGEST_RETENTION_SECONDS = 14 * DAYS

PROPERTIES = "Properties"
PARTIAL_RESPONSES = frozenset(
    "batchItemFailures process_partial_response async_process_partial_response batch_processor "
    "async_batch_processor".split()
)
"""Texts and names in the code of a function that responds with the messages that failed."""
INVOCATIONS_OF_POLLER = 10
"""The most invocations of a provisioned event poller at once."""
T = TypeVar("T")


class Facts:
    """A template, or what is deployed as one, with the code of the functions that its mappings name, read once."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.queues = template.queues
        self.mappings = template.mappings
        self.places = Places(template.path)
        names = dict.fromkeys(each.function for each in template.mappings)
        self.functions = {name: template.functions[name] for name in names if name in template.functions}
        """The functions with a queue, by name."""
        self._sources: dict[Path, Sources] = {}
        self._consumers: dict[str, ConsumerCode | None] = {}
        self._words: dict[str, frozenset[str]] = {}

    # the resources

    def known(self, part: TemplateQueue | TemplateFunction | TemplateMapping, key: str, value: T) -> T | None:
        """Return the value of a property; None if it is not certain."""
        place = f"{part.logical_id}.{key}"
        is_unknown = any(f"{each}.".startswith(f"{place}.") for each in self.template.checked.unknown)
        return None if is_unknown else value

    def visibility(self, queue: TemplateQueue) -> int | None:
        return self.known(queue, "VisibilityTimeout", queue.visibility_timeout_seconds)

    def retention(self, queue: TemplateQueue) -> int | None:
        return self.known(queue, "MessageRetentionPeriod", queue.retention_seconds)

    def timeout(self, function: TemplateFunction) -> int | None:
        return self.known(function, "Timeout", function.timeout_seconds)

    def window(self, mapping: TemplateMapping) -> int | None:
        return self.known(mapping, "MaximumBatchingWindowInSeconds", mapping.window_seconds)

    def most_invocations(self, mapping: TemplateMapping) -> int | None:
        """Return the most invocations that a mapping makes at once: 1,250 without a limit."""
        pollers = self.template.checked.pollers
        if mapping.logical_id in pollers:
            most = pollers[mapping.logical_id]
            return None if most is None else most * INVOCATIONS_OF_POLLER
        limit = mapping.maximum_concurrency
        if limit is None and mapping.is_fifo:  # the number of groups is a limit, too
            return None
        return self.known(mapping, "ScalingConfig", MOST_POLLERS if limit is None else limit)

    def title_of(self, queue: str) -> str:
        """Return the name of a queue in texts."""
        return self.queues[queue].title if queue in self.queues else queue

    def consumers_of(self, queue: str) -> tuple[str, ...]:
        """Return the logical ids of the functions that the mappings from a queue name; a foreign function as text."""
        names = (each.function for each in self.mappings if each.queue == queue)
        return tuple(self.functions[name].logical_id if name in self.functions else name for name in names)

    # the places

    def name_of(self, mapping: TemplateMapping) -> str:
        """Return a mapping as the template names it."""
        return self.template.named(mapping)

    def at(self, part: TemplateQueue | TemplateFunction, *keys: str) -> At:
        """Return the place of a property of a resource."""
        return At(resource_of(part), (PROPERTIES, *keys))

    def at_mapping(self, mapping: TemplateMapping, *keys: str) -> At:
        """Return the place of a property: of a resource, or of the event of a function from which SAM makes it."""
        function = self.functions.get(mapping.function)
        if function is None or self.places.has(mapping.logical_id):
            return At(mapping.logical_id, (PROPERTIES, *keys))
        event = mapping.logical_id.removeprefix(function.logical_id)
        return At(function.logical_id, (PROPERTIES, "Events", event, PROPERTIES, *keys))

    def where(self, part: TemplateQueue | TemplateFunction) -> str:
        """Return the place of a resource for a text, such as `` (template.yaml:3)``."""
        return f" ({self.template.path}:{self.places.line_of(At(resource_of(part)))})"

    # the code

    def code(self, function: TemplateFunction) -> tuple[Sources, str]:
        """Return the files of a function whose code is here, and the module of its handler."""
        assert function.code is not None
        if function.code not in self._sources:
            self._sources[function.code] = Sources(function.code)
        return self._sources[function.code], (function.handler or "").rpartition(".")[0].replace("/", ".")

    def files(self, function: TemplateFunction) -> Iterator[SourceFile]:
        """Yield the own files that the handler of a function loads, as far as they can be read."""
        if function.code is not None:
            sources, module = self.code(function)
            with suppress(OSError):
                yield from sources.loaded_by(module)

    def consumer(self, function: TemplateFunction) -> ConsumerCode | None:
        """Return the consumer of a function; None if it is not certain that it is one of tarry."""
        if function.name not in self._consumers:
            self._consumers[function.name] = None  # also if a file cannot be read: it is not tried again
            if function.code is not None:
                sources, module = self.code(function)
                with suppress(OSError):
                    found = ConsumerFinder([sources]).consumer_of(module, (function.handler or "").rpartition(".")[2])
                    self._consumers[function.name] = found
        return self._consumers[function.name]

    def steps(self, function: TemplateFunction, queue: str) -> tuple[Step, ...]:
        """Return the failure steps for messages from a queue; none if they are not certain."""
        consumer = self.consumer(function)
        return consumer.steps.get(queue, consumer.steps["default"]) if consumer else ()

    def uses(self, function: TemplateFunction) -> frozenset[str]:
        """Return what the code of a function certainly does: see `uses_of`."""
        return uses_of(self.files(function))

    def words(self, function: TemplateFunction) -> frozenset[str]:
        """Return the names, attributes and short texts in the own files that a handler loads."""
        if function.name not in self._words:
            nodes = (node for file in self.files(function) for node in ast.walk(file.tree))
            self._words[function.name] = frozenset(filter(None, map(_word, nodes)))
        return self._words[function.name]

    def lists_failures(self, function: TemplateFunction) -> bool:
        """Whether the response of a function certainly lists the messages that failed."""
        if PARTIAL_RESPONSES & self.words(function):
            return True
        with suppress(OSError):
            return is_consumer(function)
        return False


def _word(node: ast.AST) -> str | None:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
            return name
    return None


def resource_of(part: TemplateQueue | TemplateFunction) -> str:
    """Return the logical id of a resource, or its name if it is in no template."""
    return part.logical_id or part.name
