"""The meanings of the names in a source file, read without running it."""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tarry.tools.check.imports import ImportStatement
from tarry.tools.check.sources import SourceFile, modules_named


class Import(NamedTuple):
    """The origin of an imported name; ``name`` is empty for a module."""

    module: str
    name: str


class Names:
    """The meanings of the names in a file, as far as they show without running it."""

    def __init__(self, file: SourceFile) -> None:
        self.bound: dict[str, ast.AST | Import] = {}
        """The definition, value or import of each name at the top level; the last one."""
        self.certain: set[str] = set()
        """The names whose last definition is under no condition."""
        self.file = file
        for node, is_certain in _top_level(file.tree.body):
            for name, what in self._bindings(node):
                self.bound[name] = what
                (self.certain.add if is_certain else self.certain.discard)(name)
        assigned = Counter(
            node.id for node in ast.walk(file.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self._values = {
            name: what
            for name, what in self.bound.items()
            if isinstance(what, ast.expr) and name in self.certain and assigned[name] == 1
        }
        """The values of names that are assigned once."""

    def _bindings(self, node: ast.stmt) -> Iterator[tuple[str, ast.AST | Import]]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node
            case ast.Assign(targets=targets, value=value):
                yield from ((each.id, value) for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Import():
                for each in node.names:
                    top = each.name.partition(".")[0]
                    yield each.asname or top, Import(each.name if each.asname else top, "")
            case ast.ImportFrom():
                statement = ImportStatement(node.module or "", (), node.level, node.lineno)
                module = next(modules_named(statement, self.file), "")
                yield from ((each.asname or each.name, Import(module, each.name)) for each in node.names)

    def name_in_tarry(self, node: ast.expr) -> str | None:
        """Return the name in tarry for which an expression stands."""
        match node:
            case ast.Name(id=name):
                return self.imported(name, "tarry")
            case ast.Attribute(value=ast.Name(id=module), attr=name) if self.bound.get(module) == ("tarry", ""):
                return name
            case _:
                return None

    def imported(self, name: str, package: str) -> str | None:
        """Return the name in a package that a name is imported from."""
        match self.bound.get(name):
            case Import(module, original) if module.partition(".")[0] == package:
                return original or None
            case _:
                return None

    def value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the value of a name that is assigned once, or the expression itself."""
        return self._values.get(node.id, node) if isinstance(node, ast.Name) else node


def _top_level(body: Sequence[ast.stmt], *, is_certain: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements of a module, those under ``if`` and ``try`` too, and whether each is certain to run."""
    for node in body:
        yield node, is_certain
        if isinstance(node, ast.If | ast.Try):
            below = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            yield from _top_level(below, is_certain=False)
