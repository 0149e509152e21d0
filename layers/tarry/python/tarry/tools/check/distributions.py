"""Installed distributions: the modules that a requirement brings, with all that it requires itself."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name


def modules_of(installed: Distribution) -> frozenset[str] | None:
    """Return the top-level modules of a distribution; None if they cannot be told, as of an editable one."""
    if declared := installed.read_text("top_level.txt"):
        return frozenset(declared.split())
    files = [file for file in installed.files or () if ".dist-info" not in file.parts[0]]
    if not files or any(file.suffix == ".pth" for file in files):
        return None
    return frozenset(file.parts[0].partition(".")[0] for file in files if file.parts[0] != "..")


def modules_required(file: Path, runtime: str) -> frozenset[str] | None:
    """Return the modules that a ``requirements.txt`` brings on Lambda; None if not all of them can be told.

    That is so if a requirement is not installed here, or is a path or a URL.
    """
    found: set[str] = set()
    try:
        requirements = list(read_requirements(file))
        for installed in _closure(requirements, environment_of(runtime)):
            if (modules := modules_of(installed)) is None:
                return None
            found |= modules
    except (OSError, ValueError, RecursionError, PackageNotFoundError):  # RecursionError: a file includes itself
        return None
    return frozenset(found)


def read_requirements(file: Path) -> Iterator[Requirement]:
    """Yield the requirements of a file and of the files that it includes.

    Raises:
        InvalidRequirement: a line is not a requirement by name, such as a path.
    """
    text = re.sub(r"\\\r?\n", " ", file.read_text(encoding="utf-8-sig"))
    for line in text.splitlines():
        line = re.sub(r"(^|\s)#.*$", "", line).strip()  # noqa: PLW2901
        if included := re.match(r"(?:-r|--requirement)[ =]*(\S+)", line):
            yield from read_requirements(file.parent / included[1])
        elif line.startswith(("-e", "--editable")):
            raise InvalidRequirement(line)
        elif line and not line.startswith("-"):
            yield Requirement(re.split(r"\s--", line)[0])


def environment_of(runtime: str) -> dict[str, str]:
    """Return the values of environment markers on Lambda, for a runtime such as ``python3.13``."""
    version = runtime.removeprefix("python")
    here = {name: str(value) for name, value in default_environment().items()}
    lambdas = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
    return {**here, **lambdas, "python_version": version, "python_full_version": f"{version}.0"}


def _closure(requirements: Iterable[Requirement], environment: Mapping[str, str]) -> Iterator[Distribution]:
    """Yield the installed distributions for the requirements, and for the requirements of these.

    Raises:
        PackageNotFoundError: one of them is not installed.
    """
    todo = [(each, "") for each in requirements]
    seen: set[tuple[str, str]] = set()
    while todo:
        requirement, extra = todo.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({**environment, "extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        wanted = {(name, each) for each in ("", *requirement.extras)} - seen
        if not wanted:
            continue
        installed = distribution(name)
        yield installed
        seen |= wanted
        own = [Requirement(each) for each in installed.requires or ()]
        todo += [(each, wanted_extra) for _, wanted_extra in wanted for each in own]


def distribution_with(module: str) -> str | None:
    """Return the name of an installed distribution that has a top-level module; None if there is none."""
    return next(iter(_distributions().get(module, ())), None)


_distributions = cache(packages_distributions)
