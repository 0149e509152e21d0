"""docs/reference/local.md: the resources and properties that `tarry local` emulates, found by reading templates.

Each property is added to a small template. If the template then reads the same, the property is ignored.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from samtranslator.model.sam_resources import SamFunction

from tarry.tools.simulator.sqs.settings import QueueSettings
from tarry.tools.template import Template, TemplateError, read_template
from tarry.tools.template.model import TemplateFunction
from tarry.tools.template.reader import FUNCTION, PLAYED, QUALIFIED_TYPES, SERVERLESS
from tarry.tools.template.resources import OF_OTHER_EVENTS, QUEUE_ATTRIBUTES
from tarry.tools.template.variables import BACKING_TYPES

REGION = "us-east-1"
QUEUE, MAPPING, PLAIN = "AWS::SQS::Queue", "AWS::Lambda::EventSourceMapping", "AWS::Lambda::Function"
INVOKES = "AWS::Lambda::EventInvokeConfig"
ARN = "arn:aws:sqs:us-east-1:123456789012:Dead"
ONLY_STORED = frozenset({"memory_mb", "permissions"})
"""The fields of a function that do not change what it does: one is in its environment, the other in warnings."""

SAMPLES: Mapping[str, Any] = {
    "Architectures": ["arm64"],
    "CodeUri": "src",
    "ContentBasedDeduplication": True,
    "DeadLetterConfig": {"TargetArn": ARN},
    "DeadLetterQueue": {"Type": "SQS", "TargetArn": ARN},
    "DeduplicationScope": "messageGroup",
    "DestinationConfig": {"OnFailure": {"Destination": ARN}},
    "Enabled": False,
    "Environment": {"Variables": {"A": "b"}},
    "Events": {"E": {"Type": "SQS", "Properties": {"Queue": ARN}}},
    "EventInvokeConfig": {"MaximumRetryAttempts": 1},
    "EventSourceArn": ARN,
    "FifoQueue": True,
    "FifoThroughputLimit": "perQueue",
    "FilterCriteria": {"Filters": [{"Pattern": "{}"}]},
    "FunctionName": "other",
    "FunctionResponseTypes": ["ReportBatchItemFailures"],
    "InlineCode": "x = 1",
    "Layers": [{"Ref": "Layer"}],
    "LoggingConfig": {"LogFormat": "JSON"},
    "MaximumMessageSize": 2048,
    "MaximumRetryAttempts": 1,
    "MemorySize": 512,
    "MessageRetentionPeriod": 120,
    "Policies": [{"SQSPollerPolicy": {"QueueName": "Q"}}],
    "RecursiveLoop": "Allow",
    "RedrivePolicy": {"deadLetterTargetArn": ARN, "maxReceiveCount": 3},
    "Role": {"Fn::GetAtt": ["Role", "Arn"]},
    "Runtime": "nodejs22.x",
    "ScalingConfig": {"MaximumConcurrency": 2},
    "Code": {"ZipFile": "x = 1"},
}
"""Values of properties that need a certain one, or another than `generic`."""
OTHERS = {
    "Layer": {"Type": "AWS::Lambda::LayerVersion", "Properties": {"Content": "layer"}},
    "Role": {"Type": "AWS::IAM::Role", "Properties": {"Policies": []}},
}
CODE = {"Handler": "app.handler", "Runtime": "python3.13"}
OF_IMAGES = frozenset({"ImageConfig", "ImageUri", "PackageType"})
OF_ROLES = frozenset({"Policies", "Role"})
OF_STREAMS = re.compile(
    "Kafka|DocumentDB|StartingPosition|Topics|Tumbling|Bisect|Parallel|MaximumRe|Destination|Logging|SourceAccess"
)
"""The properties of mappings that Lambda refuses for a queue."""
BASES: Mapping[str, Mapping[str, Any]] = {
    QUEUE: {},
    FUNCTION: {**CODE, "CodeUri": ".", "Events": {"E": {"Type": "SQS", "Properties": {"Queue": f"{ARN}2"}}}},
    PLAIN: {**CODE, "Code": "."},
    MAPPING: {"EventSourceArn": "arn:aws:sqs:us-east-1:123456789012:Q", "FunctionName": "F"},
    INVOKES: {"FunctionName": "F", "Qualifier": "$LATEST", "DestinationConfig": {}, "MaximumRetryAttempts": 0},
}


def parts() -> dict[str, str]:
    """Return the generated parts of the page, by their names."""
    return {"resources": "\n".join(_table())}


def _table() -> Iterator[str]:
    yield "| resource | emulated | stored only | ignored |\n| --- | --- | --- | --- |"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.json"
        for kind, base in BASES.items():
            found: dict[str, list[str]] = {"emulated": [], "stored": [], "ignored": []}
            without = _read(path, kind, base)
            assert without is not None
            for name in properties_of(kind):
                given = _read(path, kind, {**base, name: SAMPLES.get(name, generic(kind, name))})
                found[effect(kind, name, without, given)].append(name)
            yield _row(kind, *found.values())
    for kinds, emulated, stored in (
        (QUALIFIED_TYPES, "as the end of its function's ARN", ""),
        (sorted(BACKING_TYPES), "as in moto", "as in moto"),
        (
            [f"{SERVERLESS}{kind}" for kind in sorted(PLAYED - {"Function"})],
            "as the resources that SAM makes of it",
            "",
        ),
    ):
        yield f"| {', '.join(f'`{kind}`' for kind in kinds)} | {emulated} | {stored} | |"
    yield "| all others | | | all |"


def _row(kind: str, *cells: Iterable[str]) -> str:
    texts = (", ".join(f"`{name}`" for name in sorted(cell)) for cell in cells)
    return f"| `{kind}` | {' | '.join(texts)} |"


def properties_of(kind: str) -> list[str]:
    """Return the properties of a type that a template can set, for a mapping only those of queues."""
    if kind == FUNCTION:
        return [name for name in SamFunction.property_types if name not in OF_IMAGES]
    schema = _schema(kind)
    read_only = {each.removeprefix("/properties/") for each in schema.get("readOnlyProperties", [])}
    found = [name for name in schema["properties"] if name not in read_only | OF_OTHER_EVENTS | OF_IMAGES]
    return [name for name in found if not OF_STREAMS.search(name)] if kind == MAPPING else found


def _schema(kind: str) -> Mapping[str, Any]:
    """Return the schema of a resource type in CloudFormation."""
    from cfnlint.schema import PROVIDER_SCHEMA_MANAGER  # takes two seconds, in each process that collects the tests

    schema: Mapping[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
    return schema


def effect(kind: str, name: str, without: Template, given: Template | None) -> str:
    """Return whether a property is ``emulated``, ``stored`` or ``ignored``, from the template with it and without."""
    if given is None or without == given:
        return "ignored"
    if kind == QUEUE and name in QUEUE_ATTRIBUTES:
        value = _text(SAMPLES.get(name, generic(kind, name)))
        return "emulated" if _settings({}) != _settings({name: value}) else "stored"
    if kind in (FUNCTION, PLAIN) and without.mappings == given.mappings and len(given.functions) == 1:
        [one], [other] = without.functions.values(), given.functions.values()
        changed = _changed(one, other) - (set() if name in OF_ROLES else {"permissions"})
        return "ignored" if not changed else "stored" if changed <= ONLY_STORED else "emulated"
    return "emulated"


def generic(kind: str, name: str) -> Any:
    """Return a value of the type of a property; ``Timeout`` and other numbers get 7."""
    if kind == FUNCTION:
        return 7 if name in ("Timeout", "ReservedConcurrentExecutions") else "other"
    schema = _schema(kind)["properties"][name]
    values: dict[str, Any] = {"integer": 7, "boolean": True, "array": [], "object": {}}
    return values.get(str(schema.get("type")), "other")


def _read(path: Path, kind: str, properties: Mapping[str, Any]) -> Template | None:
    """Read a template with a resource; None if SAM refuses the resource."""
    resources: dict[str, Any] = {"X": {"Type": kind, "Properties": properties}, **OTHERS}
    if kind in (MAPPING, INVOKES):
        resources["F"] = {"Type": PLAIN, "Properties": BASES[PLAIN]}
    path.write_text(json.dumps({"Resources": resources}))
    try:
        found = read_template(path)
    except TemplateError:
        return None
    return found if found.functions or kind == QUEUE else None


def _changed(one: TemplateFunction, other: TemplateFunction) -> set[str]:
    return {each.name for each in fields(one) if getattr(one, each.name) != getattr(other, each.name)}


def _settings(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a queue that its model acts on."""
    found = vars(QueueSettings(given, fifo=True))
    return {name: value for name, value in found.items() if name != "texts"} | {"FifoQueue": given.get("FifoQueue")}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
