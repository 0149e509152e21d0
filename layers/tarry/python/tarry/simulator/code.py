"""A function's code, imported among modules, a path and environment variables of its own."""

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from tarry.template import TemplateFunction
from tarry.tooling.queues import region_of
from tarry.tooling.text import printable


class CodeError(Exception):
    """A function's handler cannot be imported; ``details`` is the part of the traceback that is its own."""

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details


class Code:
    """A function's handler, imported from its directory when it is first needed, as Lambda does.

    Two functions of a template both have an ``app.py``: what is a function's own is there only while it is `active`.
    """

    def __init__(self, function: TemplateFunction, variables: Mapping[str, str]) -> None:
        self._function = function
        self.directory = (function.code or Path()).resolve()
        module, _, self._attribute = (function.handler or "").replace("/", ".").rpartition(".")
        self._name = module
        self._roots = _module_roots(self.directory, module)
        self._module: ModuleType | None = None
        self._modules: dict[str, ModuleType] = {}
        self._environment = {**_lambda_environment(function, self.directory), **variables}

    def load(self) -> ModuleType:
        """The handler's module, imported now if it was not yet.

        Raises:
            CodeError: there is none on this machine that can be imported.
        """
        if self._module is None:
            self._module = self._import(self._function)
        return self._module

    def handler(self, event: Any, context: Any) -> Any:
        """Calls the handler of the function, which is `active`. What it raises is also told on stderr, as on Lambda."""
        try:
            return getattr(self.load(), self._attribute)(event, context)
        except Exception as error:
            told = self.their_part(error) or f"{type(error).__name__}: {error}"
            sys.stderr.write(printable(told, keep="\n\t") + "\n")
            raise

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """As `active`, after `load`."""
        self.load()
        with self.active():
            yield

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """The function's environment variables, path and modules, as long as the context lasts."""
        outside = self._own_modules()
        path = list(sys.path)
        for name in outside:
            del sys.modules[name]
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self.directory))
        try:
            with environment(self._environment):
                yield
        finally:
            sys.path[:] = path
            self._modules = self._own_modules()
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(outside)

    def their_part(self, error: BaseException) -> str:
        """The error's traceback from where the function's own code begins; nothing if it never began."""
        tb = error.__traceback__
        while tb and not Path(tb.tb_frame.f_code.co_filename).is_relative_to(self.directory):
            tb = tb.tb_next
        if tb is None and not isinstance(error, SyntaxError):
            return ""
        return "".join(traceback.format_exception(type(error), error, tb)).rstrip()

    def _import(self, function: TemplateFunction) -> ModuleType:
        if function.code is None or not function.handler:
            raise CodeError(f"{function.logical_id} cannot run here: it needs a local CodeUri and a Handler")
        if not function.code.is_dir():
            raise CodeError(f"{function.logical_id}: its CodeUri {function.code} is not a directory")
        importlib.invalidate_caches()
        with self.active():
            try:
                module = importlib.import_module(self._name)
                getattr(module, self._attribute)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                what = f"{function.logical_id}: its handler {function.handler} cannot be imported from {function.code}"
                raise CodeError(f"{what}: {type(error).__name__}: {error}", self.their_part(error)) from error
        return module

    def _own_modules(self) -> dict[str, ModuleType]:
        """The modules that are there now under names of the function's own."""
        found = {name: sys.modules[name] for name in self._roots if name in sys.modules}
        if any(hasattr(module, "__path__") for module in found.values()):
            found |= {name: each for name, each in sys.modules.items() if name.partition(".")[0] in found}
        return found


@contextlib.contextmanager
def environment(values: Mapping[str, str], *, replace: bool = False) -> Iterator[None]:
    """The process's environment with these values (``replace``: with nothing else), and as it was afterwards."""
    before = dict(os.environ)
    try:
        if replace:
            os.environ.clear()
        os.environ.update(values)
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        for name, value in before.items():
            if os.environ.get(name) != value:
                os.environ[name] = value


def _module_roots(code: Path, module: str) -> list[str]:
    """The names of the modules and packages in the function's own directory."""
    files = {path.stem for path in code.glob("*.py")}
    packages = {path.parent.name for path in code.glob("*/*.py")}
    return sorted((files | packages | {module.partition(".")[0]}) - sys.stdlib_module_names - {"tarry"})


def _lambda_environment(function: TemplateFunction, code: Path) -> dict[str, str]:
    region = region_of(function.arn)
    return {
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": "local",
        "LAMBDA_TASK_ROOT": str(code),
        "_HANDLER": function.handler or "",
        "POWERTOOLS_TRACE_DISABLED": "true",  # there is no X-Ray daemon to send to
    }
