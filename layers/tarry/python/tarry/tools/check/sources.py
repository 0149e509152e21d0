"""The files of a function: which of them its handler loads, and what these import from elsewhere."""

import ast
import warnings
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tarry.tools.check.imports import ImportStatement, imports_in

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
        self._files: dict[Path, SourceFile | None] = {}
        self._installed = _installed_in(root)
        """Modules that were installed into the directory: part of the build, but not the project's own."""

    def has(self, module: str) -> bool:
        """Whether a top-level module is in the directory, in source, compiled or as a package."""
        path = self.root / module
        return path.is_dir() or path.with_suffix(".py").is_file() or any(self.root.glob(f"{module}*.so"))

    def file_of(self, module: str) -> SourceFile | None:
        """Return the file of one of the project's own modules; None if it has none, or cannot be parsed."""
        parts = module.split(".")
        if not all(parts):  # a handler that is no module, which importing it reports
            return None
        if (package := self.root.joinpath(*parts, "__init__.py")).is_file():
            return self._parsed(package, module)
        return self._parsed(self.root.joinpath(*parts[:-1], f"{parts[-1]}.py"), ".".join(parts[:-1]))

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

    def changes_path(self, module: str) -> bool:
        """Whether a file that the module loads may change ``sys.path``."""
        return any(file.changes_path for file in self.loaded_by(module))

    def why_not_read(self, module: str) -> str:
        """Return why one of the project's own modules cannot be read; empty if it can, or if it has none."""
        parts = module.split(".")
        path = self.root.joinpath(*parts[:-1], f"{parts[-1]}.py")
        if not all(parts) or self.file_of(module) is not None or not path.is_file():
            return ""
        try:
            ast.parse(path.read_bytes())
        except SyntaxError as error:
            return f"{path} does not parse: line {error.lineno}: {error.msg}"
        except (OSError, ValueError, RecursionError) as error:
            return f"{path} cannot be read: {error}"
        return ""

    def _parsed(self, path: Path, package: str) -> SourceFile | None:
        if path not in self._files:
            try:
                self._files[path] = _file(path, package, path.stat().st_mtime_ns)
            except (OSError, SyntaxError, ValueError, RecursionError):  # importing the handler reports it
                self._files[path] = None
        return self._files[path]


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


def _installed_in(root: Path) -> frozenset[str]:
    if not any(root.glob("*.dist-info")):
        return frozenset()
    from importlib.metadata import distributions

    from tarry.tools.check.distributions import modules_of

    return frozenset(name for each in distributions(path=[str(root)]) for name in modules_of(each) or ())
