"""Reading a template into values."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tarry.failed.usage import UsageError
from tarry.tools.template.code import CodeFinder
from tarry.tools.template.document import load_document, properties_of, transforms_of
from tarry.tools.template.dynamic import DynamicReferences, LazyValues, Stored
from tarry.tools.template.finding import read_samconfig
from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.model import ACCOUNT, Template, TemplateError, TemplateMapping
from tarry.tools.template.resources import (
    name_and_qualifier,
    read_backing,
    read_functions,
    read_mappings,
    read_queues,
    subscriptions_elsewhere,
    unplayed,
)
from tarry.tools.template.values import Reading, Resources, parameter_values, read_checked
from tarry.tools.template.variables import BACKING_TYPES

SERVERLESS = "AWS::Serverless::"
FUNCTION = f"{SERVERLESS}Function"
CODE_KEYS = ("CodeUri", "ContentUri", "DefinitionUri", "Location")
"""Properties with local paths. `sam deploy` uploads these files before the translation."""
CODE_ELSEWHERE = {"InlineCode", "ImageUri"}
PLACEHOLDER = "s3://bucket/key"


def translate(
    document: dict[str, Any], region: str, parameters: Mapping[str, Any], *, tolerant: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Translate a SAM template to CloudFormation: Globals are merged, SQS events become event source mappings.

    Return the translation, and why SAM refuses resources that are left out: those that consume no queue, or if
    ``tolerant`` any.

    Raises:
        TemplateError: SAM refuses the template.
    """
    if not _serverless(document):
        return document, []
    from samtranslator.model.exceptions import InvalidDocumentException  # with boto3, it takes half a second

    document = _without_local_paths(document)
    refused: list[str] = []

    while True:
        try:
            return _translated(document, region, parameters), refused
        except InvalidDocumentException as error:
            causes = {_refused(document, getattr(cause, "_logical_id", "")): cause.message for cause in error.causes}
            known = [name for name in causes if name in document["Resources"]]
            needless = [
                name for name in known if tolerant or not properties_of(document["Resources"][name]).get("Events")
            ]
            if len(needless) < max(len(causes), 1) or len(needless) == len(document["Resources"]):
                texts = "; ".join(causes.values()) or error.message
                raise TemplateError(f"SAM refuses the template: {texts}") from error
        for name in needless:
            del document["Resources"][name]
        refused += [causes[name] for name in needless]


def _without_local_paths(document: dict[str, Any]) -> dict[str, Any]:
    document = copy.deepcopy(document)
    shared = properties_of(properties_of(document, "Globals"), "Function")
    for holder in (shared, *map(properties_of, _serverless(document))):
        holder.update({key: PLACEHOLDER for key in CODE_KEYS if isinstance(holder.get(key), str)})
    for each in _serverless(document):
        properties = properties_of(each)
        if each["Type"] == FUNCTION and not CODE_ELSEWHERE & properties.keys():
            properties.setdefault("ImageUri" if properties.get("PackageType") == "Image" else "CodeUri", PLACEHOLDER)
    return document


def _translated(document: dict[str, Any], region: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    from samtranslator.parser.parser import Parser
    from samtranslator.translator.translator import Translator

    # The session only provides the region.
    translator = Translator({}, Parser(), boto_session=SimpleNamespace(region_name=region))
    try:
        found: dict[str, Any] = translator.translate(copy.deepcopy(document), dict(parameters))
    finally:
        translator.metrics.publish()  # without a publisher this sends nothing; it avoids a later warning
    return found


def _refused(document: dict[str, Any], refused: object) -> str:
    """Return the resource that SAM refuses; an event of a function is named by both."""
    names = [name for name in document["Resources"] if str(refused).startswith(name)]
    return max(names, key=len, default="")


def _serverless(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [r for r in document["Resources"].values() if str(r["Type"]).startswith(SERVERLESS)]


LOOP = "Fn::ForEach::"
TRANSFORM = "AWS::LanguageExtensions"
SECTIONS = ("Resources", "Conditions")


def expanded(document: Mapping[str, Any], scope: Intrinsics) -> dict[str, Any]:
    """Return the document with each loop replaced by what it makes; ``scope`` has the parameters and mappings.

    Raises:
        TemplateError: a loop has another form than it must have, or its collection cannot be resolved.
    """
    allowed = scope if TRANSFORM in transforms_of(document) else None
    found = {name: _expanded(document[name], allowed, name) for name in SECTIONS if document.get(name)}
    for name, resource in found.get("Resources", {}).items():
        if name not in document["Resources"] and not (isinstance(resource, dict) and "Type" in resource):
            raise TemplateError(f"Resources.{name}, made by a {LOOP.rstrip(':')}, must be a resource with a Type")
    return {**document, **found}


def _expanded(value: Any, scope: Intrinsics | None, where: str) -> Any:
    """Return a value with its loops replaced; without a scope, loops are not allowed."""
    if isinstance(value, list):
        return [_expanded(each, scope, where) for each in value]
    if not isinstance(value, dict):
        return value
    found: dict[Any, Any] = {}
    for key, each in value.items():
        place = f"{where}.{key}"
        made = _repeated(each, scope, place) if str(key).startswith(LOOP) else [(key, _expanded(each, scope, place))]
        for name, part in made:
            if name in found:
                raise TemplateError(f"{place} makes {name} twice: its keys must contain its identifier")
            found[name] = part
    return found


def _repeated(loop: Any, scope: Intrinsics | None, where: str) -> Iterator[tuple[str, Any]]:
    if scope is None:
        raise TemplateError(f"{where} needs the transform {TRANSFORM}: add it to Transform, before that of SAM")
    match loop:
        case [str(identifier), collection, dict(body)]:
            items = scope.settled(collection, f"{where}, its collection")
        case _:
            raise TemplateError(f"{where} must be a list of an identifier, a collection and a map, got {loop!r:.60}")
    if not isinstance(items, list) or any(isinstance(each, list | dict) for each in items):
        raise TemplateError(f"{where}: its collection must be a list of texts, got {items!r:.60}")
    for item in items:
        for key, value in _with_item(body, identifier, str(item)).items():
            yield from _expanded({key: value}, scope, where).items()


def _with_item(value: Any, identifier: str, item: str) -> Any:
    """Return the value with an item in place of the identifier; ``&{Identifier}`` keeps only letters and digits."""
    match value:
        case {"Ref": name} if name == identifier:
            return item
        case dict():
            parts = {key: _with_item(each, identifier, item) for key, each in value.items()}
            return {_with_item(key, identifier, item): each for key, each in parts.items()}
        case list():
            return [_with_item(each, identifier, item) for each in value]
        case str():
            plain = re.sub(r"[^A-Za-z0-9]", "", item)
            return value.replace(f"${{{identifier}}}", item).replace(f"&{{{identifier}}}", plain)
        case _:
            return value


QUALIFIED_TYPES = ("AWS::Lambda::Alias", "AWS::Lambda::Version")
FIRST_VERSION = "1"
QUEUE_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")


def with_names(
    refs: Mapping[str, Callable[[], Any]], resources: Resources, given: Intrinsics, region: str, pending: frozenset[str]
) -> Intrinsics:
    """Return a scope that also knows the names and ARNs of the queues and functions among the resources.

    ``pending`` are the logical ids of all resources.
    """
    refs = dict(refs)
    attributes: dict[str, Callable[[], Any]] = {}
    scope = copy.copy(given)
    scope.refs, scope.attributes, scope.pending = LazyValues(refs), LazyValues(attributes), pending
    functions = f"arn:aws:lambda:{region}:{ACCOUNT}:function"

    def settled(logical_id: str, key: str, default: Any = None) -> Any:
        properties = resources[logical_id].get("Properties") or {}
        return scope.settled(properties.get(key, default), f"{logical_id}.{key}")

    def name_of_queue(logical_id: str) -> str:
        suffix = ".fifo" if str(settled(logical_id, "FifoQueue")).lower() == "true" else ""
        found = settled(logical_id, "QueueName", logical_id + suffix)
        if not isinstance(found, str) or not QUEUE_NAME.fullmatch(found):
            raise TemplateError(
                f"{logical_id}.QueueName: {found!r} is not a queue name: use up to 80 letters, digits, hyphens and "
                "underscores (a placeholder of another tool must be filled in first)"
            )
        return found

    def qualified_arn(logical_id: str) -> str:
        """Return the ARN of an alias or a version."""
        name, _ = name_and_qualifier(str(settled(logical_id, "FunctionName")))
        return f"{functions}:{name}:{settled(logical_id, 'Name', FIRST_VERSION)}"

    for logical_id, resource in resources.items():
        match resource["Type"]:
            case "AWS::SQS::Queue":
                name = f"{logical_id}.QueueName"
                attributes[name] = partial(name_of_queue, logical_id)
                attributes[f"{logical_id}.Arn"] = partial(
                    lambda name: f"arn:aws:sqs:{region}:{ACCOUNT}:{scope.attributes[name]}", name
                )
            case "AWS::Lambda::Function":
                refs[logical_id] = partial(settled, logical_id, "FunctionName", logical_id)
                attributes[f"{logical_id}.Arn"] = partial(
                    lambda logical_id: f"{functions}:{scope.refs[logical_id]}", logical_id
                )
            case "AWS::Lambda::EventSourceMapping":
                refs[logical_id] = partial(getattr, TemplateMapping(logical_id, "", ""), "uuid")
            case kind if kind in QUALIFIED_TYPES:
                arn = partial(qualified_arn, logical_id)
                refs[logical_id] = attributes[f"{logical_id}.AliasArn"] = attributes[f"{logical_id}.FunctionArn"] = arn
    return scope


PLAYED = frozenset({"Function", "LayerVersion", "SimpleTable", "Connector"})
"""The SAM types that affect queues and functions here. APIs, state machines and nested applications are not played."""


def pruned(document: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the document without the parts of SAM that are not played, such as APIs, and what was left out."""
    resources: dict[str, Any] = {}
    left_out: list[str] = []
    for name, each in document["Resources"].items():
        kind = str(each["Type"]) if isinstance(each, dict) and "Type" in each else ""
        if not kind or (kind.startswith(SERVERLESS) and kind.removeprefix(SERVERLESS) not in PLAYED):
            left_out.append(f"{name} ({kind})" if kind else name)
        elif kind == FUNCTION:
            properties = _without_deployment(properties_of(each))
            events = properties_of(properties, "Events")
            others = [event for event in events.values() if isinstance(event, dict) and not _is_of_queue(event)]
            if events:
                properties["Events"] = {key: event for key, event in events.items() if _is_of_queue(event)}
            if others:
                kinds = dict.fromkeys(str(event.get("Type")) for event in others)
                left_out.append(f"{name} ({', '.join(kinds)} events)")
            resources[name] = {**each, "Properties": properties}
        else:
            resources[name] = each
    shared = {name: each for name, each in properties_of(document, "Globals").items() if name in PLAYED}
    if "Function" in shared:
        shared["Function"] = _without_deployment(properties_of(shared, "Function"))
    return {**document, "Resources": resources, "Globals": shared}, left_out


def _without_deployment(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in properties.items() if name != "DeploymentPreference"}


def _is_of_queue(event: Any) -> bool:
    """Whether an event is of an SQS queue; an SNS event may make one (``SqsSubscription``)."""
    if not isinstance(event, dict):
        return False
    return event.get("Type") == "SQS" or (
        event.get("Type") == "SNS" and bool(properties_of(event).get("SqsSubscription"))
    )


PLAYED_TYPES = frozenset({"AWS::SQS::Queue", "AWS::Lambda::Function", "AWS::Lambda::EventSourceMapping"})
"""The types of resources that must be resolvable."""


def read_template(
    path: Path | str,
    parameters: Mapping[str, str] | None = None,
    region: str = "us-east-1",
    *,
    configured: Mapping[str, str] | None = None,
    stored: Stored | None = None,
    lenient: bool = False,
    tolerant: bool = False,
) -> Template:
    """Read a SAM or CloudFormation template. Queues and functions without a name get their logical id as name.

    Only what queues, mappings and their functions need must be resolvable.

    Args:
        path: The template file.
        parameters: Values of parameters; the others have their defaults.
        region: The value of ``AWS::Region``.
        configured: Values with precedence over the defaults; None for those of the project's samconfig file, in its
            environment ``default``.
        stored: Values of SSM parameters and secrets that the template does not make, for dynamic references.
        lenient: Give a placeholder to each parameter without a value, and leave out mappings and properties of queues
            that cannot be resolved.
        tolerant: Leave out each resource that cannot be read, and accept cycles of dead-letter queues. Implies
            ``lenient``.

    Raises:
        TemplateError: the file or its samconfig file cannot be read, or a required intrinsic cannot be resolved.
    """
    path = Path(path)
    try:
        values = read_samconfig(path, None).parameters if configured is None else configured
        written = load_document(path)
        declared = written.get("Parameters") or {}
        given = parameter_values(declared, parameters or {}, values, placeholders=lenient or tolerant)
        reading = Reading(lenient or tolerant, given, tolerant)
        return _template(path, region, written, reading, stored or {})
    except UsageError as error:  # of the samconfig file
        raise TemplateError(str(error)) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # a list where a map must be, and the like
        why = f"{type(error).__name__}: {error}"
        raise TemplateError(f"{path} is not a valid template ({why}): sam validate --lint names the line") from error


def _template(path: Path, region: str, written: dict[str, Any], reading: Reading, stored: Stored) -> Template:
    values = reading.parameters
    refs = values.refs(region)
    # Loops first: SAM does not know them. Then what is not played, whose values need not be known here.
    whole = expanded(written, Intrinsics(LazyValues(refs), {}, written.get("Mappings"), watch=reading.used.add))
    document, not_played = pruned(whole)
    translated, refused = translate(document, region, values.values, tolerant=reading.tolerant)
    reading.left_out.extend(refused)
    early = Intrinsics(
        LazyValues(refs), {}, translated.get("Mappings"), translated.get("Conditions"), watch=reading.used.add
    )
    resources = {name: each for name, each in translated["Resources"].items() if _is_in_use(name, each, early, reading)}
    reading.scope = with_names(refs, resources, early, region, frozenset(resources) | frozenset(whole["Resources"]))
    reading.scope.fill = DynamicReferences(resources, reading.scope, stored).fill
    finder = CodeFinder(path, document, reading)
    mappings = read_mappings(resources, reading)
    functions = read_functions(resources, reading, finder, {mapping.function for mapping in mappings})
    queues = read_queues(resources, reading, mappings, functions)  # an unknown timeout is at least the functions'
    elsewhere = frozenset(subscriptions_elsewhere(resources, reading.scope.unwatched()))
    backing = read_backing({name: each for name, each in resources.items() if name not in elsewhere}, reading)
    checked = read_checked(written, translated["Resources"], reading.scope.unwatched())
    return Template(
        path=path,
        region=region,
        queues=queues,
        functions=functions,
        mappings=mappings,
        backing=backing,
        placeholders={name: value for name, value in values.placeholders.items() if name in reading.used},
        defaulted=reading.defaulted,
        missing=values.missing,
        not_played=(*not_played, *unplayed(resources, elsewhere)),
        left_out=tuple(dict.fromkeys(reading.left_out)),
        checked=replace(checked, unknown=frozenset({*reading.unknown, *reading.defaulted})),
    )


def _is_in_use(name: str, resource: Mapping[str, Any], scope: Intrinsics, reading: Reading) -> bool:
    """Whether the condition of a resource holds; one that cannot be resolved does not."""
    if "Condition" not in resource:
        return True
    # The condition of another type does not make its parameters needed.
    matters = resource["Type"] in PLAYED_TYPES | BACKING_TYPES
    condition = partial((scope if matters else scope.unwatched()).condition, resource["Condition"], name)
    return bool(reading.attempt(condition, is_needed=resource["Type"] in PLAYED_TYPES))
