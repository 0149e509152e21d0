"""Parameters with a made-up value: which of them matter, and which values depend on one."""

from collections.abc import Iterator, Mapping
from typing import Any

from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.model import TemplateError


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
        refs = _WithoutInvented(given.refs, invented)
        super().__init__(refs, given.attributes, given.mappings, given.conditions, given.pending)
        self.fill = given.fill
        self._given = given

    def condition(self, name: Any, where: str) -> bool:
        """Return the value of a condition of the template."""
        return self._given.condition(name, where)


class _WithoutInvented(Mapping[str, Any]):
    def __init__(self, refs: Mapping[str, Any], invented: frozenset[str]) -> None:
        self._refs = refs
        self._invented = invented

    def __getitem__(self, key: str) -> Any:
        if key in self._invented:
            raise MadeUpValue(key)
        return self._refs[key]

    def __contains__(self, key: object) -> bool:
        return key in self._refs

    def __iter__(self) -> Iterator[str]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)
