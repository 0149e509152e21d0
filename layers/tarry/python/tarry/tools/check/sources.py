"""The files of a function: which of them its handler loads, and what these import from elsewhere."""

import ast
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import distributions
from pathlib import Path
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


PATH_CHANGES = (b"sys.path", b"addsitedir")
MOST_FILES = 500
"""The number of parsed files that are kept."""


class SourceFile(NamedTuple):
    """A file as a module. Its relative imports start from ``package``."""

    path: Path
    package: str
    tree: ast.Module
    imports: tuple[ImportStatement, ...]
    changes_path: bool
    """Whether it may change ``sys.path``, so that modules may come from anywhere."""


class OutsideImport(NamedTuple):
    """An import of a top-level module that is not in the directory of the function."""

    module: str
    path: Path
    line: int


class Sources:
    """The modules in a directory, as the first entry of the import path. Files are parsed once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files: dict[Path, SourceFile | Exception] = {}
        """Each file, or why it cannot be parsed."""
        self._installed: frozenset[str] = frozenset()
        """Modules that were installed into the directory: part of the build, but not the project's own."""
        if any(root.glob("*.dist-info")):
            from tarry.tools.check.distributions import modules_of

            found = distributions(path=[str(root)])
            self._installed = frozenset(name for each in found for name in modules_of(each) or ())

    def has(self, module: str) -> bool:
        """Whether a top-level module is in the directory, in source, compiled or as a package."""
        path = self.root / module
        return path.is_dir() or path.with_suffix(".py").is_file() or any(self.root.glob(f"{module}*.so"))

    def file_of(self, module: str) -> SourceFile | None:
        """Return the file of one of the project's own modules; None if it has none, or cannot be parsed."""
        parts = module.split(".")
        if not all(parts):  # not the name of a module; importing the handler reports it
            return None
        if (package := self.root.joinpath(*parts, "__init__.py")).is_file():
            return self._parsed(package, module)
        return self._parsed(self._path_of(module), ".".join(parts[:-1]))

    def _path_of(self, module: str) -> Path:
        *above, name = module.split(".")
        return self.root.joinpath(*above, f"{name}.py")

    def loaded_by(self, module: str) -> Iterator[SourceFile]:
        """Yield the project's own files that importing a module loads, directly or through other files."""
        todo, seen = deque([module]), set[str]()
        while todo:
            name = todo.popleft()
            if name in seen or name.partition(".")[0] in self._installed:
                continue
            seen.add(name)
            todo.extend(name.rpartition(".")[:1] if "." in name else ())  # its package is loaded before it
            if (file := self.file_of(name)) is not None:
                yield file
                todo.extend(each for statement in file.imports for each in modules_named(statement, file))

    def outside_imports(self, module: str) -> list[OutsideImport]:
        """Return the modules from elsewhere that the handler's module needs, each with the first place."""
        found: dict[str, OutsideImport] = {}
        for file in self.loaded_by(module):
            for statement in file.imports:
                name = statement.module.partition(".")[0]
                if not statement.level and not self.has(name):
                    found.setdefault(name, OutsideImport(name, file.path, statement.line))
        return list(found.values())

    def why_not_read(self, module: str) -> str:
        """Return why one of the project's own modules cannot be read; empty if it can, or if it has none."""
        self.file_of(module)
        path = self._path_of(module)
        match self._files.get(path):
            case SyntaxError() as error:
                return f"{path} does not parse: line {error.lineno}: {error.msg}"
            case Exception() as error if path.is_file():
                return f"{path} cannot be read: {error}"
            case _:
                return ""

    def _parsed(self, path: Path, package: str) -> SourceFile | None:
        if path not in self._files:
            try:
                self._files[path] = _file(path, package, path.stat().st_mtime_ns)
            except (OSError, SyntaxError, ValueError, RecursionError) as error:  # importing the handler reports it
                self._files[path] = error
        found = self._files[path]
        return found if isinstance(found, SourceFile) else None


@lru_cache(MOST_FILES)
def _file(path: Path, package: str, changed_at: int) -> SourceFile:
    """Return a parsed file; ``changed_at`` tells a changed file from one that was parsed before."""
    text = path.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the source: they are not about tarry
        tree = ast.parse(text)
    return SourceFile(path, package, tree, tuple(imports_in(tree)), any(each in text for each in PATH_CHANGES))


def modules_named(statement: ImportStatement, file: SourceFile) -> Iterator[str]:
    """Yield the modules that an import may load, in full: of ``from a import b`` both ``a`` and ``a.b``."""
    module = statement.module
    if statement.level:
        above = file.package.split(".")
        package = above[: len(above) - statement.level + 1]
        module = ".".join(filter(None, [*package, module]))
    if module:
        yield module
    yield from (f"{module}.{name}".lstrip(".") for name in statement.names if name != "*")


CIRCUIT_BREAKER = "aws_lambda_powertools.utilities.circuit_breaker"
BREAKER_NAMES = frozenset({"circuit_breaker", "CircuitBreakerOpenError"})
TABLE_LAYER = "DynamoDBPersistenceLayer"
ATTEMPT_STORES = frozenset({"DynamoDBAttempts", "MemoryAttempts"})
"""The attempt stores: with one, a deferred message waits in place without an attempt."""
MESSAGE_NAMES = frozenset({"message", "msg"})


def uses_of(files: Iterable[SourceFile]) -> frozenset[str]:
    """Return what the code in these files certainly does, as words.

    ``defers``: it defers messages, so that tarry sends copies to their queue, unless it has ``attempts``, a store of
    them; ``table`` and ``idempotency``: its consumer keeps idempotency records in DynamoDB.
    """
    return frozenset(use for file in files for use in _uses(file.tree))


def _uses(tree: ast.Module) -> Iterator[str]:
    imported = {
        each.asname or each.name: (node.module, each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
    }
    messages = MESSAGE_NAMES | {
        each.arg
        for each in ast.walk(tree)
        if isinstance(each, ast.arg) and each.annotation and "Message" in ast.unparse(each.annotation)
    }
    yield from _imported_uses(imported.values())
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="defer")) if name in messages:
                yield "defers"
            case ast.Call(func=ast.Name(id=name)) if imported.get(name, ("", ""))[1] == TABLE_LAYER:
                yield "table"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="tarry"), attr=attr)) if attr in ATTEMPT_STORES:
                yield "attempts"
            case ast.Attribute(value=ast.Name(id="tarry"), attr="Defer"):
                yield "defers"
            case ast.Name(id=name) if imported.get(name) == ("tarry", "Defer"):
                yield "defers"
            case ast.keyword(arg="idempotency", value=value) if not isinstance(value, ast.Constant):
                yield "idempotency"


def _imported_uses(names: Iterable[tuple[str, str]]) -> Iterator[str]:
    for module, name in names:
        if module.startswith(CIRCUIT_BREAKER) and name in BREAKER_NAMES:
            yield "defers"
        if module.partition(".")[0] == "tarry" and name in ATTEMPT_STORES:
            yield "attempts"
