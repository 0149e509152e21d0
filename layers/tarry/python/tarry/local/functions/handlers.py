"""The source of a function, read for whether its handler is a consumer of tarry, without importing it."""

import ast
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tarry.template import TemplateFunction

DECORATORS = frozenset({"consumer", "batch_consumer", "Consumer"})
"""The names of tarry that make a consumer."""
MOST_IMPORTS = 10
"""The imports that are followed from the module of the handler to the module that defines it."""


def is_consumer(function: TemplateFunction) -> bool:
    """Return whether the handler of a function is a consumer of tarry, or calls one, as far as its source tells."""
    if function.code is None or not function.handler:
        return False
    module, _, name = function.handler.rpartition(".")
    roots = [function.code, *(each for layer in function.layers for each in (layer / "python", layer))]
    source = _Source.of(module.replace("/", "."), roots, MOST_IMPORTS)
    return source is not None and source.is_handler(name)


class _Source:
    """A parsed module: the names that it defines at its top level, and those that it imports."""

    def __init__(self, tree: ast.Module, package: list[str], roots: list[Path], imports_left: int) -> None:
        self._package = package
        self._roots = roots
        self._imports_left = imports_left
        self._definitions: dict[str, ast.AST] = {}
        self._imported: dict[str, tuple[str, str]] = {}
        """The module and the name in it, by the name here; an empty name for a module."""
        for node in _top_level(tree):
            self._note(node)

    @classmethod
    def of(cls, name: str, roots: list[Path], imports_left: int) -> "_Source | None":
        """Return the module with this name; None if it is not here, or cannot be parsed."""
        parts = name.split(".")
        if not imports_left or not all(parts):
            return None
        for root in roots:
            folder = root.joinpath(*parts)
            for file, package in ((folder.with_name(f"{parts[-1]}.py"), parts[:-1]), (folder / "__init__.py", parts)):
                try:
                    tree = _parsed(file, file.stat().st_mtime_ns)
                except OSError:
                    continue
                except (SyntaxError, ValueError, RecursionError):
                    return None
                return cls(tree, package, roots, imports_left - 1)
        return None

    def is_handler(self, name: str) -> bool:
        """Return whether a name is a consumer, or a function that calls one."""
        definition = self._definitions.get(name)
        if name in self._imported:
            source, original = self._origin(name)
            return source is not None and source.is_handler(original)
        called = (node.func for node in ast.walk(definition) if isinstance(node, ast.Call)) if definition else ()
        return self._is_consumer(name) or any(
            isinstance(each, ast.Name) and self._is_consumer(each.id) for each in called
        )

    def _is_consumer(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a name is a consumer of tarry: decorated as one, or assigned from one."""
        if name in seen:
            return False
        if name in self._imported:
            source, original = self._origin(name)
            return source is not None and source._is_consumer(original)
        definition = self._definitions.get(name)
        if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
            return any(self._makes_consumer(each, seen | {name}) for each in definition.decorator_list)
        return definition is not None and self._makes_consumer(definition, seen | {name})

    def _makes_consumer(self, expression: ast.AST, seen: frozenset[str]) -> bool:
        """Return whether an expression names a decorator of tarry, or something made with one."""
        for node in ast.walk(expression):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module, name = self._imported.get(node.value.id, ("", ""))
                if module == "tarry" and not name and node.attr in DECORATORS:
                    return True
            if isinstance(node, ast.Name):
                module, name = self._imported.get(node.id, ("", ""))
                if (module.partition(".")[0] == "tarry" and name in DECORATORS) or self._is_consumer(node.id, seen):
                    return True
        return False

    def _origin(self, name: str) -> tuple["_Source | None", str]:
        module, original = self._imported[name]
        return (_Source.of(module, self._roots, self._imports_left) if original else None), original

    def _note(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._definitions[node.name] = node
            case ast.Assign():
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._definitions[target.id] = node.value
            case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
                self._definitions[target.id] = value
            case ast.Import():
                for alias in node.names:
                    self._imported[alias.asname or alias.name.partition(".")[0]] = (alias.name, "")
            case ast.ImportFrom():
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = (self._absolute(node), alias.name)

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self._package[: len(self._package) - node.level + 1]
        return ".".join([*package, *filter(None, [node.module])])


@lru_cache
def _parsed(file: Path, changed_at: int) -> ast.Module:
    """Return the parsed file; ``changed_at`` tells a changed file from one that was parsed before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the source: they are not about tarry
        return ast.parse(file.read_bytes())


def _top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those under ``if`` and ``try`` too."""
    left = list(reversed(tree.body))
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.If | ast.Try):
            left += reversed([each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)])
