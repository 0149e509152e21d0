"""Dynamic references, such as ``{{resolve:ssm:NAME}}``: the values of parameters of SSM and of secrets."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics, references
from tarry.tools.template.model import TemplateError
from tarry.tools.template.variables import physical_name


class LazyValues(Mapping[str, Any]):
    """Values made on first use. A value that needs itself raises `TemplateError`."""

    def __init__(self, makers: Mapping[str, Callable[[], Any]]) -> None:
        self._makers = makers
        self._made: dict[str, Any] = {}
        self._open: dict[str, None] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._made:
            if key in self._open:
                cycle = [*self._open][list(self._open).index(key) :]
                raise TemplateError(
                    f"the names of {', '.join(cycle)} refer to each other: give one of them a plain name"
                )
            self._open[key] = None
            try:
                self._made[key] = self._makers[key]()
            finally:
                del self._open[key]
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


PATTERN = re.compile(r"\{\{resolve:(ssm|ssm-secure|secretsmanager):([^{}]*)\}\}")
MARK = re.compile(r"\0(\d+)\0")
"""Stands for a part that is not text."""
KINDS = {"AWS::SSM::Parameter": "ssm", "AWS::SecretsManager::Secret": "secretsmanager"}
ARN_PARTS = 7
SUFFIX = re.compile(r"-[A-Za-z0-9]{6}$")
"""The end of a secret's ARN, which Secrets Manager adds to its name."""
PASSWORD_LENGTH = 32
"""The length of a generated secret, unless the template has one: the default of Secrets Manager."""

Stored = Mapping[tuple[str, str], str]
"""Values by service (``ssm`` or ``secretsmanager``) and name."""


class DynamicReferences:
    """The values of the parameters and secrets of a template, and of those in ``stored``."""

    def __init__(self, resources: Mapping[str, Mapping[str, Any]], scope: Intrinsics, stored: Stored) -> None:
        self._resources = {name: each for name, each in resources.items() if each["Type"] in KINDS}
        self._scope = scope.unwatched()
        self._scope.fill = self.fill
        self._stored = stored
        self._open: list[str] = []

    def fill(self, parts: Sequence[Any], where: str) -> list[Any]:
        """Return the parts of a text with each dynamic reference replaced; parts that are not texts are intrinsics.

        Raises:
            TemplateError: neither the template nor ``stored`` has the parameter or secret.
        """
        text = "".join(each if isinstance(each, str) else f"\0{index}\0" for index, each in enumerate(parts))
        found: list[Any] = []
        end = 0
        for match in PATTERN.finditer(text):
            found += [*_split(text[end : match.start()], parts), self._value(match, parts, where)]
            end = match.end()
        return [*found, *_split(text[end:], parts)]

    def _value(self, match: re.Match[str], parts: Sequence[Any], where: str) -> Any:
        shown = "".join(each if isinstance(each, str) else f"${{{_name(each)}}}" for each in _split(match[0], parts))
        if shown in self._open:
            raise TemplateError(f"{where}: {shown} refers to itself")
        service = "secretsmanager" if match[1] == "secretsmanager" else "ssm"
        name, rest = _identity(match[2])
        marked = MARK.fullmatch(name)
        logical_id = _name(parts[int(marked[1])]) if marked else self._logical_id(service, name)
        self._open.append(shown)
        try:
            value = self._stored_at(logical_id, where) if logical_id in self._resources else None
        finally:
            self._open.pop()
        if value is None:
            value = self._stored.get((service, name), self._stored.get((service, SUFFIX.sub("", name))))
        if value is None:
            kind = "secret" if service == "secretsmanager" else "SSM parameter"
            raise TemplateError(f"{where}: {shown} cannot be resolved: neither the template nor --seed has the {kind}")
        key = rest[1] if service == "secretsmanager" and len(rest) > 1 else ""
        return _of_key(value, key, f"{where}: {shown}") if key else value

    def _logical_id(self, service: str, name: str) -> str:
        for logical_id, resource in self._resources.items():
            if KINDS[resource["Type"]] == service:
                given = (resource.get("Properties") or {}).get("Name")
                try:
                    properties = self._scope.resolve({"Name": given}, logical_id)
                    own = physical_name(logical_id, {**resource, "Properties": properties})
                except TemplateError:
                    continue
                if own in (name, SUFFIX.sub("", name)):
                    return logical_id
        return ""

    def _stored_at(self, logical_id: str, where: str) -> Any:
        """Return the value of a parameter or secret of the template; it may contain references."""
        resource = self._resources[logical_id]
        properties = self._scope.resolve(resource.get("Properties") or {}, logical_id)
        if resource["Type"] == "AWS::SSM::Parameter":
            return properties.get("Value")
        if references(properties.get("SecretString")):
            return properties["SecretString"]
        return secret_text(physical_name(logical_id, {**resource, "Properties": properties}), properties)


def secret_text(name: str, properties: Mapping[str, Any]) -> str:
    """Return the text of a secret; a generated password is the same in each run."""
    generate = properties.get("GenerateSecretString")
    if generate is None:
        return str(properties.get("SecretString", ""))
    length = int(generate.get("PasswordLength", PASSWORD_LENGTH))
    password = (sha256(name.encode()).hexdigest() * (length // 64 + 1))[:length]
    key = generate.get("GenerateStringKey")
    return json.dumps({**json.loads(generate.get("SecretStringTemplate", "{}")), key: password}) if key else password


def _identity(text: str) -> tuple[str, list[str]]:
    """Split ``NAME:VERSION`` or ``SECRET:SecretString:KEY``; the name of a secret may be an ARN."""
    parts = text.split(":")
    count = ARN_PARTS if parts[0] == "arn" else 1
    name = ":".join(parts[:count])
    return (parts[count - 1] if count > 1 and len(parts) >= count else name), parts[count:]


def _of_key(secret: str, key: str, where: str) -> str:
    try:
        return str(json.loads(secret)[key])
    except (ValueError, KeyError, TypeError) as error:  # TypeError: only AWS knows the secret
        raise TemplateError(f"{where} cannot be resolved: the secret has no key {key}") from error


def _split(text: str, parts: Sequence[Any]) -> Iterator[Any]:
    """Yield the texts and the parts of a marked text."""
    for index, each in enumerate(MARK.split(text)):
        if index % 2:
            yield parts[int(each)]
        elif each:
            yield each


def _name(part: Any) -> str:
    found = references(part)
    return found[0].name if found else ""
