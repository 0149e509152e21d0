"""A function's consumer, found in its code without running it."""

import ast
from collections.abc import Sequence

from tarry.tools.check.consumer_code import ConsumerCode
from tarry.tools.check.consumer_settings import DECORATORS, SettingsReader
from tarry.tools.check.names import Import, Names
from tarry.tools.check.sources import Sources
from tarry.tools.template import TemplateFunction

MAX_DEPTH = 10
"""The number of imports that are followed from the module of the handler to the one that defines it."""
MAKERS = DECORATORS | {"Consumer"}
"""The names of tarry that make a consumer."""


def consumer_of(sources: Sources, module: str, name: str) -> ConsumerCode | None:
    """Return the consumer that a handler is; None if it is not certain that it is a consumer of tarry."""
    return _Finder([sources]).consumer_of(module, name)


def is_consumer(function: TemplateFunction) -> bool:
    """Return whether the handler of a function is a consumer of tarry, or calls one, as far as its source tells."""
    if function.code is None or not function.handler:
        return False
    module, _, name = function.handler.rpartition(".")
    roots = [function.code, *(each for layer in function.layers for each in (layer / "python", layer))]
    return _Finder([Sources(root) for root in roots]).is_handler(module.replace("/", "."), name)


class _Finder:
    """A finder of consumers in the files of some places, the first that has a module."""

    def __init__(self, places: Sequence[Sources]) -> None:
        self._places = places
        self._names: dict[str, Names | None] = {}

    def consumer_of(self, module: str, name: str, depth: int = 0) -> ConsumerCode | None:
        """Return the consumer that a name is; None if it is not certain that it is one."""
        names = self._names_of(module, depth)
        if names is None or name not in names.certain:
            return None
        match names.bound[name]:
            case Import(origin, original):
                return self.consumer_of(origin, original, depth + 1)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as function:
                return SettingsReader(names).consumer_among(function.decorator_list, function)
            case ast.Name(id=other) if other in names.bound:
                return self.consumer_of(module, other, depth + 1)
            case value:
                calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)]
                made = SettingsReader(names).consumer_among(calls)
                return made and made._replace(above=())  # calls, whose order is not that of decorators

    def is_handler(self, module: str, name: str, depth: int = 0) -> bool:
        """Return whether a name is a consumer, or a function that calls one."""
        names = self._names_of(module, depth)
        match names.bound.get(name) if names else None:
            case None:
                return False
            case Import(origin, original):
                return self.is_handler(origin, original, depth + 1)
            case definition:
                called = [each.func for each in ast.walk(definition) if isinstance(each, ast.Call)]
                used = [name, *(each.id for each in called if isinstance(each, ast.Name))]
                return any(self._is_consumer(module, each, depth) for each in used)

    def _is_consumer(self, module: str, name: str, depth: int, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a name is a consumer of tarry: decorated as one, or assigned from one."""
        names = self._names_of(module, depth)
        if names is None or name in seen:
            return False
        match names.bound.get(name):
            case None:
                return False
            case Import(origin, original):
                return self._is_consumer(origin, original, depth + 1)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as function:
                parts: Sequence[ast.AST] = function.decorator_list
            case value:
                parts = [value]
        nodes = [node for part in parts for node in ast.walk(part)]
        return any(
            isinstance(node, ast.Name | ast.Attribute)
            and (
                names.name_in_tarry(node) in MAKERS
                or (isinstance(node, ast.Name) and self._is_consumer(module, node.id, depth, seen | {name}))
            )
            for node in nodes
        )

    def _names_of(self, module: str, depth: int) -> Names | None:
        if depth > MAX_DEPTH:
            return None
        if module not in self._names:
            files = (place.file_of(module) for place in self._places)
            file = next((each for each in files if each is not None), None)
            self._names[module] = None if file is None else Names(file)
        return self._names[module]
