"""The code of a function, imported with its own modules, import path and environment variables."""

import contextlib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tarry.errors import ConfigurationError
from tarry.failed.queue_names import region_of
from tarry.failed.text import one_line, printable
from tarry.failed.usage import UsageError
from tarry.tools.simulator.batch_errors import batch_error
from tarry.tools.simulator.functions import current_call
from tarry.tools.simulator.invocations import message_ids
from tarry.tools.simulator.record_errors import watch
from tarry.tools.template import TemplateFunction
from tarry.tools.template.code import import_path, is_node, missing_code, not_run_here


class CodeError(UsageError):
    """A function's handler cannot be imported; ``details`` is the part of the traceback in the function's own code."""


class Code:
    """The handler of a function, imported from the function's directory at first use, as Lambda does.

    Two functions of a template may both have an ``app.py``, so a function's modules are in ``sys.modules`` only while
    it is `active`.
    """

    def __init__(self, function: TemplateFunction, variables: Mapping[str, str]) -> None:
        self._function = function
        self.directory = (function.code or Path()).resolve()
        module, _, self._attribute = (function.handler or "").replace("/", ".").rpartition(".")
        self._name = module
        self._path = import_path(function) or [self.directory]
        self._roots = _module_roots(self._path, module)
        self._module: ModuleType | None = None
        self._modules: dict[str, ModuleType] = {}
        self._shown: set[str] = set()
        """The tracebacks that were written, and the errors of messages of a batch."""
        own = {**lambda_environment(function, self.directory), "AWS_LAMBDA_LOG_STREAM_NAME": "local"}
        self._environment = {**own, **variables}
        self._level: int | str | None = function.log_level
        """The level of the root logger while the function runs; None for that of the process."""

    def load(self) -> ModuleType:
        """Return the handler's module, imported at the first call. Raises `CodeError` if that cannot be done."""
        if self._module is None:
            self._module = self._import(self._function)
        return self._module

    def handler(self, event: Any, context: Any) -> Any:
        """Call the function's handler. It must be `active`.

        Exceptions are also written to stderr, as Lambda does, but a traceback only once.
        """
        try:
            return getattr(self.load(), self._attribute)(event, context)
        except Exception as error:
            sys.stderr.write(printable(self._shown_text(error, event), keep="\n\t") + "\n")
            raise

    def _shown_text(self, error: Exception, event: Any) -> str:
        fields = {"errorType": type(error).__name__, "errorMessage": str(error)}
        if (batch := batch_error(fields, message_ids(event))) is not None:
            is_new = not self._shown.issuperset(batch.errors)
            self._shown.update(batch.errors)
            return batch.text if is_new else f"{batch.text.splitlines()[0]} (errors above)"
        text = self.own_traceback(error) or f"{type(error).__name__}: {error}"
        if text in self._shown:
            first_line = next(iter(str(error).splitlines()), "")
            return f"{type(error).__name__}: {first_line} (traceback above)"
        self._shown.add(text)
        return text

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Load the module, then enter `active`."""
        self.load()
        with self.active():
            yield

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Set the function's environment variables, import path and modules within the context."""
        outside = self._own_modules()
        path = list(sys.path)
        for name in outside:
            del sys.modules[name]
        sys.modules.update(self._modules)
        sys.path[:0] = map(str, self._path)
        try:
            with environment(self._environment), self._log_level():
                yield
        finally:
            sys.path[:] = path
            self._modules = self._own_modules()
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(outside)

    @contextlib.contextmanager
    def _log_level(self) -> Iterator[None]:
        """Keep the level of the root logger apart from those of other functions: code often sets it."""
        root = logging.getLogger()
        before = root.level
        if self._level is not None:
            root.setLevel(self._level)
        begun = root.level
        try:
            yield
        finally:
            self._level = self._level if root.level == begun else root.level
            root.setLevel(before)

    def own_traceback(self, error: BaseException) -> str:
        """Format the traceback from the first frame in the function's own code; empty if there is none."""
        tb = error.__traceback__
        while tb and not Path(tb.tb_frame.f_code.co_filename).is_relative_to(self.directory):
            tb = tb.tb_next
        if tb is None and not isinstance(error, SyntaxError):
            return ""
        if isinstance(error, ConfigurationError):  # how tarry found the mistake does not matter
            own = [each for each in traceback.extract_tb(tb) if Path(each.filename).is_relative_to(self.directory)]
            lines = [*traceback.format_list(own), *traceback.format_exception_only(error)]
            return "".join(["Traceback (most recent call last):\n", *lines]).rstrip()
        return "".join(traceback.format_exception(type(error), error, tb)).rstrip()

    def _import(self, function: TemplateFunction) -> ModuleType:
        if is_node(function.runtime) or not_run_here(function.runtime):
            raise CodeError(
                f"{function.logical_id} cannot run here: its runtime is {function.runtime}; "
                "only functions in Python run in this process"
            )
        if problem := missing_code(function):
            raise CodeError(problem)
        importlib.invalidate_caches()
        watch(_note_error)
        with self.active():
            try:
                module = importlib.import_module(self._name)
                getattr(module, self._attribute)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                what = f"{function.logical_id}: its handler {function.handler} cannot be imported from {function.code}"
                foreign = function.foreign if isinstance(error, ImportError) else ()
                builds = "".join(f". Build left out: {build}" for build in foreign)
                text = f"{what}: {type(error).__name__}: {error}{builds}"
                raise CodeError(text, self.own_traceback(error)) from error
        return module

    def _own_modules(self) -> dict[str, ModuleType]:
        """Return the loaded modules whose names belong to the function's directory."""
        found = {name: sys.modules[name] for name in self._roots if name in sys.modules}
        if any(hasattr(module, "__path__") for module in found.values()):
            found |= {name: each for name, each in sys.modules.items() if name.partition(".")[0] in found}
        return found


@contextlib.contextmanager
def environment(values: Mapping[str, str], *, replace: bool = False) -> Iterator[None]:
    """Set environment variables within the context (``replace``: and remove all others); restore them afterwards."""
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


def _note_error(message_id: str, error: str) -> None:
    if (call := current_call()) is not None:
        call.errors[message_id] = one_line(error)


def _module_roots(path: Sequence[Path], module: str) -> list[str]:
    """Return the names of the modules and packages in the function's directory and its layers.

    A package of a layer with compiled modules is shared by all functions: it can be imported only once.
    """
    found = {module.partition(".")[0]}
    for folder in path:
        found |= {each.stem for each in folder.glob("*.py")}
        packages = {each.parent for each in folder.glob("*/*.py")}
        found |= {each.name for each in packages if folder == path[0] or not any(each.rglob("*.so"))}
    return sorted(found - sys.stdlib_module_names - {"tarry"})


def lambda_environment(function: TemplateFunction, code: Path) -> dict[str, str]:
    """Return the environment variables that Lambda sets, except those of one environment; ``code`` is a directory."""
    region = region_of(function.arn)
    return {
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_LAMBDA_FUNCTION_NAME": function.name,
        "AWS_LAMBDA_FUNCTION_VERSION": "$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(function.memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{function.name}",
        "LAMBDA_TASK_ROOT": str(code),
        "_HANDLER": function.handler or "",
        "POWERTOOLS_METRICS_DISABLED": "true",  # there is no CloudWatch that reads them
        "POWERTOOLS_TRACE_DISABLED": "true",  # there is no X-Ray daemon to send to
        **({"AWS_LAMBDA_LOG_LEVEL": function.log_level} if function.log_level else {}),
    }
