"""The imports of a file that are certain to run."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

CATCH_IMPORT_ERROR = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


class ImportStatement(NamedTuple):
    """``from ..module import names`` has a ``level`` of 2, ``import module`` has no names."""

    module: str
    names: tuple[str, ...]
    level: int
    line: int


def imports_in(tree: ast.AST) -> Iterator[ImportStatement]:
    """Yield the imports of a file, also those in functions.

    Leave out those under a condition, such as ``if TYPE_CHECKING``, and those whose failure is caught.
    """
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import():
                yield from (ImportStatement(each.name, (), 0, node.lineno) for each in node.names)
            case ast.ImportFrom():
                names = tuple(each.name for each in node.names)
                yield ImportStatement(node.module or "", names, node.level, node.lineno)
            case ast.expr() | ast.If() | ast.Match() | ast.ExceptHandler():
                pass
            case ast.Try() | ast.TryStar() if any(map(_catches, node.handlers)):
                pass
            case ast.With() if any("suppress" in ast.dump(item.context_expr) for item in node.items):
                pass
            case _:
                yield from imports_in(node)


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    return any(isinstance(each, ast.Name) and each.id in CATCH_IMPORT_ERROR for each in ast.walk(handler.type))
