"""The findings that `tarry local` reports at its start: it reads the code of the functions and applies the rules."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tarry.tools.check.facts import Facts, Version, is_brought, text_of, version_of
from tarry.tools.check.finding import Finding
from tarry.tools.check.rules import code as rules_of_code
from tarry.tools.check.rules.permissions import missing_permissions, missing_table_permissions
from tarry.tools.check.rules.queues import receive_counts
from tarry.tools.check.sources import OutsideImport
from tarry.tools.template import Template, TemplateFunction, TemplateMapping
from tarry.tools.template.code import is_unpacked
from tarry.tools.template.model import TemplateLayer

REQUIREMENTS = "requirements.txt"
"""The only file from which `sam build` installs packages for a function, unless ``--manifest`` names another."""
LOCKS = ("Pipfile", "Pipfile.lock", "pdm.lock", "poetry.lock", "uv.lock")
"""Files of tools that are often used to write ``requirements.txt`` before a build."""

POWERTOOLS_LAYER = re.compile(r":layer:AWSLambdaPowertoolsPython|/aws/service/powertools/python/")
"""AWS's layer of Powertools: its ARN in any account, or its public parameter."""
POWERTOOLS_MODULES = frozenset(
    "annotated_types attr attrs aws_encryption_sdk aws_lambda_powertools aws_xray_sdk cffi cryptography dotenv "
    "fastjsonschema jsonpath_ng jwt ply pycparser pydantic pydantic_core pydantic_settings typing_extensions "
    "typing_inspection wrapt".split()
)
"""The modules of ``aws-lambda-powertools[all]``."""

HARMLESS = frozenset("cd echo find mkdir rm test touch true".split())
"""The commands of a Makefile that add nothing to a build."""
MOVING = frozenset("cd find rm touch".split())
"""The commands among them that change the directory, or what was copied before."""
COPYING = frozenset({"cp", "mv", "rsync"})
STRIPPING = "python3 -I python/tarry/tools/common/strip.py".split()
"""The layer of tarry removes its comments; the modules stay."""
ELSEWHERE = re.compile(r"\$|~|(?<!\S)[\"']?/|\.\.")
"""A path that is not beside the Makefile, or is not known."""

OWN_BUILD = re.compile(r"(python3\.\d+)?")
"""The build methods with which `sam build` itself installs packages."""
MAKEFILE = "Makefile"
BUILD_FUNCTION = "$(build_function)"
"""The command of ``packages.mk`` that installs the requirements, and copies the directory without `NOT_CODE`."""
NOT_CODE = frozenset({MAKEFILE, REQUIREMENTS, "tests", "__pycache__"})
INSTALL = "$(call install,$(ARTIFACTS_DIR),"
"""The command of ``packages.mk`` that installs the requirements of a function."""


class Recipe(NamedTuple):
    """The effect of a function's Makefile."""

    copied: frozenset[str]
    """The names in the directory of the function that it copies into the build."""
    installs: bool
    """Whether it installs the requirements."""


def recipe_of(function: TemplateFunction) -> Recipe | None:
    """Return the effect of the Makefile that builds a function; None without one, or if a command is not known.

    Raises:
        OSError: a file or directory cannot be read.
    """
    if function.code is None or function.build_method != "makefile":
        return None
    copied: set[str] = set()
    commands = _commands(function.code / MAKEFILE, f"build-{function.logical_id}")
    for command in commands:
        name, *arguments = command.replace("$(ARTIFACTS_DIR)", "artifacts").split()
        if command == BUILD_FUNCTION:
            names = {entry.name for entry in function.code.iterdir()}
            copied |= {each for each in names - NOT_CODE if not each.startswith(".")}
        elif name == "cp" and (found := _copied(function.code, arguments)) is not None:
            copied |= found
        elif INSTALL not in command and name not in HARMLESS - MOVING:
            return None
    installs = any(each == BUILD_FUNCTION or INSTALL in each for each in commands)
    return Recipe(frozenset(copied), installs) if commands else None


def _copied(code: Path, arguments: list[str]) -> set[str] | None:
    """Return the names in a directory that a `cp` copies into the build; None if that cannot be told."""
    options = "".join(each for each in arguments if each.startswith("-"))
    *sources, target = (each.strip("\"'") or "." for each in ["", *arguments] if not each.startswith("-"))
    sources = sources[1:]
    if target.rstrip("/.") != "artifacts" or any(map(ELSEWHERE.search, sources)):
        return None
    is_whole = re.search("[rRa]", options) is not None
    found = {path for each in sources for path in (code.iterdir() if each in (".", "./", "./.") else code.glob(each))}
    return {path.relative_to(code).parts[0] for path in found if is_whole or path.is_file()}


def modules_in_build(function: TemplateFunction, template: Path, runtime: str) -> frozenset[str] | None:
    """Return the modules of a function's requirements and layers; None if not all of them can be told.

    Raises:
        OSError: a file or directory cannot be read.
    """
    parts = [_of_function(function, template, runtime), *(_of_layer(each, runtime) for each in function.all_layers)]
    known = [each for each in parts if each is not None]
    return frozenset().union(*known) if len(known) == len(parts) else None


def _of_function(function: TemplateFunction, template: Path, runtime: str) -> frozenset[str] | None:
    code, recipe = function.code, recipe_of(function)
    if code is None or (recipe is None and not OWN_BUILD.fullmatch(function.build_method or "")):
        return None
    settings = template.parent.glob("samconfig.*")
    if recipe is None and any("manifest" in file.read_text("utf-8", "replace") for file in settings):
        return None  # SAM CLI may read another file of requirements
    if (code / REQUIREMENTS).is_file() and (recipe is None or recipe.installs):
        return _required(code / REQUIREMENTS, runtime)
    return None if recipe is None and _has_lock(code.resolve(), template.parent.resolve()) else frozenset()


def _has_lock(code: Path, top: Path) -> bool:
    """Whether a lock file is in the directory of the code, or in one around it up to the template's."""
    around = [code, *code.parents]
    folders = around[: around.index(top) + 1] if top in around else around
    return any((folder / name).exists() for folder in folders for name in LOCKS)


def _of_layer(layer: TemplateLayer, runtime: str) -> frozenset[str] | None:
    if layer.arn is not None and POWERTOOLS_LAYER.search(layer.arn):
        return POWERTOOLS_MODULES
    path, method = layer.path, layer.build_method
    if path is None or not path.is_dir():
        return None
    is_certain = OWN_BUILD.fullmatch(method) is not None if method else (path / "python").is_dir()
    if not (_only_copies(path / MAKEFILE) if method == "makefile" else is_certain):
        return None
    places = [path, path / "python", *path.glob("python/lib/python3.*/site-packages")]
    entries = (entry for place in places if place.is_dir() for entry in place.iterdir())
    found = frozenset(entry.name.partition(".")[0] for entry in entries)
    if not (path / REQUIREMENTS).is_file():
        return found
    required = _required(path / REQUIREMENTS, runtime)
    return None if required is None else found | required


def _only_copies(makefile: Path) -> bool:
    """Whether a Makefile only copies what is beside it, so that the directory shows what the layer contains."""
    commands = [each.replace("$(ARTIFACTS_DIR)", "artifacts").split() for each in _commands(makefile)]
    return bool(commands) and all(
        command[: len(STRIPPING)] == STRIPPING
        or name in HARMLESS
        or (name in COPYING and not any(map(ELSEWHERE.search, command)))
        for command in commands
        for name in command[:1]
    )


def _commands(makefile: Path, target: str | None = None) -> list[str]:
    """Return the commands of a Makefile, or only those of one target; none if it cannot be read."""
    current = None
    recipes = []
    with suppress(OSError, ValueError):
        for line in makefile.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if not line.startswith("\t"):
                current = line.partition(":")[0].strip() if line.strip() else current
            elif target in (None, current):
                recipes.append(line.strip())
    commands = (each.strip(" @-") for line in recipes for each in re.split(r"&&|\|\||[;|]", line))
    return [each for each in commands if each]


def _required(requirements: Path, runtime: str) -> frozenset[str] | None:
    from tarry.tools.check.distributions import modules_required  # packaging takes 25 ms, and is often not needed

    return modules_required(requirements, runtime)


def findings_at_start(
    template: Template, mappings: Iterable[TemplateMapping], here: Version = sys.version_info[:2]
) -> list[Finding]:
    """Return what makes the functions of these mappings behave differently at AWS, as far as it is certain.

    ``here`` is the version of Python that runs the functions.
    """
    facts = Facts(replace(template, mappings=tuple(mappings)))
    versions = {each.logical_id: version_of(each.runtime) for each in facts.functions.values()}
    known = {name: version for name, version in versions.items() if version}
    return [*rules_of_code.other_python(known, here), *at_any_python(facts)]


def at_any_python(facts: Facts) -> Iterator[Finding]:
    """Yield the findings that do not depend on the version of Python here."""
    yield from _modules(facts)
    yield from _left_out(facts)
    for function in facts.functions.values():
        yield from missing_table_permissions(function, facts)
    yield from findings_of_code(facts)
    for function in facts.functions.values():
        if (consumer := facts.consumer(function)) is not None:
            yield from rules_of_code.unfit_decorators(function.logical_id, consumer.above)


def findings_of_code(facts: Facts) -> Iterator[Finding]:
    """Yield the findings about the consumers of queues and the permissions that they need."""
    pairs = [(each, facts.functions[each.function]) for each in facts.mappings if each.function in facts.functions]
    for mapping, function in pairs:
        yield from missing_permissions(mapping, function, facts)
    for mapping, function in pairs:
        if (queue := facts.queues.get(mapping.queue)) is not None:
            yield from receive_counts(mapping, queue, function, facts)


_Missing = tuple[tuple[OutsideImport, ...], tuple[Path, int] | None]
"""The imports that a build lacks, and the place of the model for which it lacks Powertools' parser."""


def _modules(facts: Facts) -> Iterator[Finding]:
    groups: dict[tuple[Path, Version, _Missing], list[TemplateFunction]] = {}
    for function in facts.functions.values():
        version = version_of(function.runtime)
        if function.code is not None and function.handler and version is not None:
            with suppress(OSError):
                missing = _missing(function, version, facts)
                groups.setdefault((function.code, version, missing), []).append(function)
    for (code, version, (imports, parser)), functions in groups.items():
        names = [each.logical_id for each in functions]
        if is_unpacked(code):
            yield from rules_of_code.missing_in_inline_code(names, imports)
        elif imports or parser:
            from tarry.tools.check.distributions import distribution_with

            yield from rules_of_code.missing_modules(names, imports, version, code, distribution_with, parser)


def _missing(function: TemplateFunction, version: Version, facts: Facts) -> _Missing:
    """Return what is certainly missing in the build of a function. Raises `OSError` if a file cannot be read."""
    sources, module = facts.code(function)
    needed = [each for each in sources.outside_imports(module) if not is_brought(each.module, version)]
    consumer = facts.consumer(function)
    model = consumer.model if consumer is not None else None
    if not (needed or model):
        return (), None
    contained = modules_in_build(function, facts.template.path, f"python{text_of(version)}")
    if contained is None or any(file.changes_path for file in sources.loaded_by(module)):
        return (), None
    imports = tuple(each for each in needed if each.module not in contained)
    lacks_parser = any(each not in contained and not sources.has(each) for each in rules_of_code.PARSER)
    return imports, model if lacks_parser else None


def _left_out(facts: Facts) -> Iterator[Finding]:
    """Yield the functions whose Makefile does not copy all of their own files that they load."""
    for function in facts.functions.values():
        if function.code is None or version_of(function.runtime) is None:
            continue
        with suppress(OSError):
            if (recipe := recipe_of(function)) is not None:
                loaded = (each.path.relative_to(function.code) for each in facts.files(function))
                left_out = dict.fromkeys(each for each in loaded if each.parts[0] not in recipe.copied)
                yield from rules_of_code.modules_left_out(function.logical_id, function.code, list(left_out))
