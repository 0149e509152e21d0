"""The values of parameters and properties: given, made up, resolved, or left out if they cannot be resolved."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tarry.tools.template.document import listed, properties_of, transforms_of
from tarry.tools.template.intrinsics import NO_VALUE, Intrinsics, attribute_text, intrinsic_of, references
from tarry.tools.template.model import ACCOUNT, STACK_NAME, Checked, TemplateAlarm, TemplateError

LIMITS_OF_NUMBERS = (("MinValue", 1, "must be at least {}"), ("MaxValue", -1, "must be at most {}"))
LIMITS_OF_TEXTS = (
    ("MinLength", 1, "must have at least {} characters"),
    ("MaxLength", -1, "must have at most {} characters"),
)


@dataclass(frozen=True)
class ParameterValues:
    """The values of parameters; ``placeholders`` are those made up, ``missing`` the names of those without a value.

    ``invented`` are the names of those placeholders that are not among the allowed values of their parameter.
    """

    values: Mapping[str, Any]
    placeholders: Mapping[str, str]
    missing: tuple[str, ...]
    invented: frozenset[str]

    def refs(self, region: str) -> dict[str, Callable[[], Any]]:
        """Return functions that return the values of parameters, and of the pseudo parameters of CloudFormation.

        That of a missing parameter raises `TemplateError`, naming all.
        """
        pseudo_parameters = {
            "AWS::AccountId": ACCOUNT,
            "AWS::NotificationARNs": [],
            "AWS::Partition": "aws",
            "AWS::Region": region,
            "AWS::StackId": f"arn:aws:cloudformation:{region}:{ACCOUNT}:stack/{STACK_NAME}/local",
            "AWS::StackName": STACK_NAME,
            "AWS::URLSuffix": "amazonaws.com",
        }
        found: dict[str, Callable[[], Any]] = dict.fromkeys(self.missing, self._refuse)
        return found | {
            name: partial(lambda it: it, value) for name, value in {**self.values, **pseudo_parameters}.items()
        }

    def _refuse(self) -> Any:
        raise missing_values(self.missing)


def missing_values(names: tuple[str, ...]) -> TemplateError:
    """Return the error for parameters without a value, with the options to type."""
    options = " ".join(f"--parameter {name}=VALUE" for name in names)
    return TemplateError(f"parameters without a value: {', '.join(names)}. Add {options}")


def parameter_values(
    declared: Mapping[str, Any], given: Mapping[str, str], configured: Mapping[str, str], *, placeholders: bool
) -> ParameterValues:
    """Return the values of the declared parameters.

    Args:
        declared: The section ``Parameters`` of the template.
        given: Values with precedence over all others.
        configured: Values of the samconfig file; those of parameters that the template does not have are ignored.
        placeholders: Whether a parameter without a value gets a placeholder.

    Raises:
        TemplateError: a given value is for a parameter that the template does not have, or CloudFormation would refuse
            a given or configured value.
    """
    for name in given:
        if name not in declared:
            raise TemplateError(f"the template has no parameter {name}; it has {', '.join(declared) or 'none'}")
    for name, declaration in declared.items():
        if name in given:
            _check(f"parameter {name}", given[name], declaration)
        elif name in configured:
            _check(f"parameter {name} of the samconfig file", configured[name], declaration)
    texts = {
        name: given.get(name, configured.get(name, declaration.get("Default")))
        for name, declaration in declared.items()
    }
    missing = tuple(name for name, value in texts.items() if value is None)
    made_up = {name: _placeholder(name, declared[name]) for name in missing} if placeholders else {}
    values = {name: _typed(value, declared[name]) for name, value in (texts | made_up).items() if value is not None}
    invented = frozenset(name for name in made_up if not _allowed(declared[name]))
    return ParameterValues(values, made_up, missing, invented)


def _placeholder(name: str, declaration: Mapping[str, Any]) -> str:
    if allowed := _allowed(declaration):
        return str(allowed[0])
    if "Number" in str(declaration.get("Type")):
        return str(declaration.get("MinValue", 1))
    return name


def _allowed(declaration: Mapping[str, Any]) -> list[Any]:
    allowed = declaration.get("AllowedValues")
    return allowed if isinstance(allowed, list) else []


def _typed(value: Any, declaration: Mapping[str, Any]) -> Any:
    is_list = "List" in str(declaration.get("Type"))
    return [part.strip() for part in str(value).split(",")] if is_list else value


def _check(what: str, value: str, declaration: Mapping[str, Any]) -> None:
    """Raise `TemplateError` for a value that CloudFormation refuses; of a list, each part must meet the constraints."""
    parts = _typed(value, declaration)
    for part in (parts if value else []) if isinstance(parts, list) else [parts]:
        if broken := next(_broken(str(part), declaration), None):
            shown = "the given value (NoEcho)" if attribute_text(declaration.get("NoEcho")) == "true" else repr(value)
            raise TemplateError(f"{what} cannot be {shown}: {declaration.get('ConstraintDescription', broken)}")


def _broken(value: str, declaration: Mapping[str, Any]) -> Iterator[str]:
    """Yield the constraints of a parameter that a value does not meet."""
    allowed = [attribute_text(each) for each in _allowed(declaration)]
    is_number = "Number" in str(declaration.get("Type"))
    number = _number(value)
    if is_number and number is None:
        yield "must be a number"
    elif allowed and value not in allowed and not (is_number and number in map(_number, allowed)):
        yield f"must be one of {', '.join(allowed)}"
    for key, sign, text in LIMITS_OF_NUMBERS if is_number else LIMITS_OF_TEXTS:
        measured, limit = number if is_number else len(value), _number(attribute_text(declaration.get(key)))
        if measured is not None and limit is not None and measured * sign < limit * sign:
            yield text.format(attribute_text(declaration[key]))
    pattern = declaration.get("AllowedPattern")
    with suppress(re.error):  # CloudFormation reads patterns of Java, and most of them are patterns of Python, too
        if isinstance(pattern, str) and not is_number and not re.fullmatch(pattern, value):
            yield f"must match {pattern}"


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    return None


class MadeUpValue(TemplateError):
    """A value depends on a parameter whose value is made up."""

    def __init__(self, parameter: str) -> None:
        super().__init__(f"the parameter {parameter} has no value")
        self.parameter = parameter


class KnownValues(Intrinsics):
    """A resolver that raises `MadeUpValue` for a value that depends on one of these parameters.

    The choice of a condition may depend on them: each of its values is written in the template.
    """

    def __init__(self, given: Intrinsics, invented: frozenset[str]) -> None:
        vars(self).update(vars(given))
        self._given = given
        self._invented = invented

    def condition(self, name: Any, where: str) -> bool:
        """Return the value of a condition of the template."""
        return self._given.condition(name, where)

    def _ref(self, name: str, where: str) -> Any:
        if name in self._invented:
            raise MadeUpValue(name)
        return super()._ref(name, where)


T = TypeVar("T")

Resources = Mapping[str, Mapping[str, Any]]


@dataclass
class Reading:
    """How to read: parts that cannot be resolved are left out if ``lenient``."""

    lenient: bool
    parameters: ParameterValues
    tolerant: bool = False
    """Whether resources that cannot be read are left out, whatever the reason."""
    scope: Intrinsics = field(init=False)
    """Resolves the properties of resources, once their names are known."""
    left_out: list[str] = field(default_factory=list)
    """Why parts of the template are left out."""
    defaulted: dict[str, str] = field(default_factory=dict)
    """The properties left out because they depend on a made-up value, each with the name of the parameter."""
    unknown: set[str] = field(default_factory=set)
    """The properties that cannot be resolved."""
    used: set[str] = field(default_factory=set)
    """The names of parameters and resources that are referred to."""

    def attempt(self, make: Callable[[], T], *, is_needed: bool = True) -> T | None:
        """Return the value; None if it cannot be resolved and may be left out."""
        try:
            return make()
        except TemplateError as error:
            if is_needed and not self.lenient:
                raise
            self.left_out.append(str(error))
            return None

    def each(self, make: Callable[[], T]) -> T | None:
        """Return a resource; None if it cannot be read and every such resource is left out."""
        return self.attempt(make, is_needed=False) if self.tolerant else make()

    def known(
        self, properties: Mapping[str, Any], names: Iterable[str], where: str, *, is_needed: bool = True
    ) -> dict[str, Any]:
        """Return the named properties, resolved, without the parts that depend on a made-up value."""
        resolver = KnownValues(self.scope, self.parameters.invented)
        found: dict[str, Any] = {}
        for name in (each for each in names if each in properties):
            items = partial(self._items, {name: properties[name]}, resolver, where)
            if (value := self.attempt(items, is_needed=is_needed)) is None:
                self.unknown.add(f"{where}.{name}")
            found |= value or {}
        return found

    def _items(self, values: Mapping[Any, Any], resolver: KnownValues, where: str) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key, value in values.items():
            place = f"{where}.{key}"
            try:
                part = self._part(value, resolver, place)
            except MadeUpValue as error:
                self.defaulted[place] = error.parameter
            else:
                if part is not NO_VALUE:
                    found[key] = part
        return found

    def _part(self, value: Any, resolver: KnownValues, where: str) -> Any:
        match value:
            case {"Fn::If": [name, yes, no]}:
                return self._part(yes if resolver.condition(name, where) else no, resolver, where)
            case dict() if intrinsic_of(value) is None:
                return self._items(value, resolver, where)
            case list():
                return list(self._items(dict(enumerate(value)), resolver, where).values())
            case _:
                return resolver.settled(value, where)

    def queue_arn(self, value: Any) -> Any:
        """Return the ARN of a queue; one given by a parameter without a value has the name of the placeholder."""
        if value in self.parameters.placeholders.values():
            return f"arn:aws:sqs:{self.scope.refs['AWS::Region']}:{ACCOUNT}:{value}"
        return value


def of_type(resources: Resources, kind: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return (
        (name, resource.get("Properties") or {}) for name, resource in resources.items() if resource["Type"] == kind
    )


def map_of(value: Any, where: str) -> Mapping[str, Any]:
    """Return a map, which may be written as JSON text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value or {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise TemplateError(f"{where} must be a map, got {value!r}")
    return found


def integer(properties: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = properties.get(key, default)
    try:
        return int(value)
    except (ValueError, TypeError) as error:
        raise TemplateError(f"{where}.{key} must be a whole number, got {value!r}") from error


def optional_integer(properties: Mapping[str, Any], key: str, where: str) -> int | None:
    return integer(properties, key, 0, where) if properties.get(key) is not None else None


NESTED = ("AWS::CloudFormation::Stack", "AWS::Serverless::Application")
"""Resources whose templates may contain the alarms of this one."""
KNOWN_TRANSFORMS = frozenset({"AWS::Serverless-2016-10-31", "AWS::LanguageExtensions"})


def read_checked(document: Mapping[str, Any], translated: Resources, scope: Intrinsics) -> Checked:
    """Return the parts that only `tarry check` looks at; ``translated`` are all resources, whatever their condition."""
    alarms: list[TemplateAlarm] = []
    are_known = not any(each.get("Type") in NESTED for each in document["Resources"].values() if isinstance(each, dict))
    for logical_id, properties in of_type(translated, "AWS::CloudWatch::Alarm"):
        try:
            alarms += alarms_of(logical_id, properties, partial(scope.settled, where=logical_id))
        except (TemplateError, LookupError, TypeError, AttributeError):
            are_known = False
    names = (each.get("Name") if isinstance(each, dict) else each for each in transforms_of(document))
    macros = tuple(str(each) for each in names if each not in KNOWN_TRANSFORMS)
    return Checked(
        alarms=tuple(alarms),
        are_alarms_known=are_known and not macros,
        keys=dict(_keys(translated, scope)),
        pollers=dict(_pollers(translated, scope)),
        macros=macros,
    )


def alarms_of(
    name: str, alarm: Mapping[str, Any], settled: Callable[[Any], Any] = lambda value: value
) -> Iterator[TemplateAlarm]:
    """Yield an alarm with each of its metrics of queues: its own, and those that its expressions use.

    ``alarm`` is as CloudFormation or CloudWatch has it; ``settled`` resolves its values, or raises an error.
    """
    several = alarm.get("Metrics")
    parts = [(each.get("MetricStat") or {}).get("Metric") or {} for each in several or ()]
    for metric in [alarm, *parts]:
        if settled(metric.get("Namespace")) == "AWS/SQS":
            dimensions = settled(metric.get("Dimensions") or [])
            queue = next((each["Value"] for each in dimensions if each["Name"] == "QueueName"), None)
            yield TemplateAlarm(name, settled(metric.get("MetricName")), queue)


def _keys(resources: Resources, scope: Intrinsics) -> Iterator[tuple[str, str]]:
    """Yield the logical ids of the keys that encrypt queues, by the logical id of the queue."""
    for logical_id, properties in of_type(resources, "AWS::SQS::Queue"):
        try:
            found = references(scope.resolve(properties.get("KmsMasterKeyId"), logical_id))
        except TemplateError:
            continue
        if len(found) == 1 and (resources.get(found[0].name) or {}).get("Type") == "AWS::KMS::Key":
            policy = properties_of(properties_of(resources[found[0].name]), "KeyPolicy")
            principals = [
                properties_of(each, "Principal") if isinstance(each, dict) else {}
                for each in listed(policy.get("Statement"))
            ]
            # A policy whose principals are services and the account only leaves the permissions to IAM.
            accounts = [one for each in principals for one in listed(each.get("AWS", []))]
            if all(principals) and all(":root" in str(each) for each in accounts):
                yield logical_id, found[0].name


def _pollers(resources: Resources, scope: Intrinsics) -> Iterator[tuple[str, int | None]]:
    """Yield the most event pollers of the mappings that have provisioned ones; None if that is not known."""
    for logical_id, properties in of_type(resources, "AWS::Lambda::EventSourceMapping"):
        try:
            config = scope.settled({"it": properties.get("ProvisionedPollerConfig")}, logical_id).get("it")
            if config is not None:
                yield logical_id, optional_integer(config, "MaximumPollers", logical_id)
        except (TemplateError, AttributeError):
            yield logical_id, None
