"""Builds whose compiled modules are for another architecture or another Python than those of this machine."""

import platform
import re
import sys
from collections import defaultdict
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

TAGGED = re.compile(r"\.(?:cpython-(?P<version>\d+)(?:-(?P<machine>\w+)-linux-\w+|-[\w-]+)?|abi3)\.so")
"""The end of the name of a compiled module: ``.cpython-313-aarch64-linux-gnu.so``, ``.abi3.so``."""
ELF = b"\x7fELF"
MACHINES = {b"\x3e\x00": "x86_64", b"\xb7\x00": "aarch64"}
"""The machines of ELF files, at bytes 18 and 19."""


def why_foreign(directory: Path) -> str:
    """Return what the compiled modules in a directory are built for if this Python cannot import them, and the remedy.

    Empty if it can import all of them, or if there are none. A module may be there for several Pythons; one is enough.
    """
    modules: dict[Path, list[Path]] = defaultdict(list)
    for path in directory.rglob("*.so"):
        if TAGGED.fullmatch(path.name[path.name.index(".") :]):
            modules[path.with_name(path.name.partition(".")[0])].append(path)
    foreign = (paths[0] for paths in modules.values() if not any(map(_fits, paths)))
    return _described(found) if (found := next(foreign, None)) else ""


def _fits(path: Path) -> bool:
    suffix = path.name[path.name.index(".") :]
    if suffix == ".abi3.so":
        return _machine(path) == _machine(Path(sys.executable))
    return suffix in EXTENSION_SUFFIXES


def _machine(path: Path) -> str:
    """Return the machine of an ELF file; empty for other files."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return ""
    return MACHINES.get(head[18:20], "another machine") if head.startswith(ELF) else ""


def _described(path: Path) -> str:
    found = TAGGED.fullmatch(path.name[path.name.index(".") :])
    assert found
    machine = found["machine"] or _machine(path) or "another system"
    version = f"{found['version'][0]}.{found['version'][1:]}" if found["version"] else ""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    there = f"{machine} and Python {version}" if version else machine
    own = platform.machine()
    command = ["make", "build"]
    if machine != own:
        command.append(f"ARCH={'arm64' if own == 'aarch64' else own}")
    if version not in ("", here):
        command.append(f"PYTHON={here}")
    return (
        f"built for {there}, and this is Python {here} on {own}. Packages installed here are used instead; "
        f"to build for this machine: {' '.join(command)}"
    )
