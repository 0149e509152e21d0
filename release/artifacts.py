"""The files of a release: wheel, sdist, layers, lists of their packages, and checksums."""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from release.decision import Refused

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The Pythons that tarry supports."""


@dataclass(frozen=True)
class Layer:
    """A Lambda layer: tarry without its tools, for any architecture, or Powertools with pydantic for one."""

    kind: str
    name: str
    python: str
    architectures: Sequence[str]


def run(*command: str | Path, at: Path, **environment: str) -> None:
    """Run a command in a directory, with its output on the terminal.

    Raises:
        Refused: The command fails.
    """
    words = [str(each) for each in command]
    if subprocess.run(words, cwd=at, env=os.environ | environment, check=False).returncode:
        raise Refused(f"{' '.join(words)} failed")


def pythons() -> dict[str, Path]:
    """Return the interpreters of this machine that can make an environment, by version."""
    found: dict[str, Path] = {}
    for version in PYTHONS:
        of_pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}"))
        for each in (f"python{version}", *map(str, of_pyenv)):
            command = [each, "-c", "import sys, venv; print(sys.executable)"]
            try:
                answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            except (OSError, subprocess.CalledProcessError):
                continue
            found[version] = Path(answer.strip())
            break
    return found


def build_distributions(source: Path, out: Path) -> Path:
    """Build wheel and sdist twice, compare the bytes, and return the path of the wheel."""
    with TemporaryDirectory() as again:
        for folder in (out, Path(again)):
            run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, at=source)
        different = [path.name for path in sorted(out.iterdir()) if path.read_bytes() != _bytes(Path(again, path.name))]
    if different:
        raise Refused(f"two builds of {' and '.join(different)} have different bytes")
    [wheel] = out.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", *out.iterdir(), at=source)
    return wheel


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def build_layers(source: Path, out: Path, interpreters: Mapping[str, Path], version: str) -> list[Layer]:
    """Build the layers for each Python of this machine, which compiles their bytecode, as zip files."""
    first = Path(sys.executable).parent  # its python3 and pip run the makefiles
    path = os.pathsep.join([str(first), *(str(each.parent) for each in interpreters.values()), os.environ["PATH"]])
    layers = [
        layer
        for python, digits in ((each, each.replace(".", "")) for each in interpreters)
        for layer in (
            Layer("tarry", f"tarry-python{digits}", python, ("arm64", "x86_64")),
            Layer("powertools", f"tarry-powertools-python{digits}-arm64", python, ("arm64",)),
            Layer("powertools", f"tarry-powertools-python{digits}-x86-64", python, ("x86_64",)),
        )
    ]
    for each in layers:
        with TemporaryDirectory() as folder:
            variables = {"ARTIFACTS_DIR": folder, "PYTHON": each.python, "ARCH": each.architectures[0], "PATH": path}
            run("make", "-s", f"build-{each.kind.title()}Layer", at=source / "layers" / each.kind, **variables)
            write_zip(Path(folder), out / f"{each.name}-{version}.zip")
    return layers


def write_zip(folder: Path, target: Path) -> None:
    """Write the files of a folder in the order of their names, without their times."""
    with ZipFile(target, "w", ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            info = ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
            info.compress_type = ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            archive.writestr(info, path.read_bytes())


def try_wheel(wheel: Path, python: Path) -> None:
    """Make a project in a clean environment that has the wheel, and run its tests and its sample event there."""
    with TemporaryDirectory() as folder:
        at, binaries, project = Path(folder), Path(folder, "venv", "bin"), Path(folder, "shop")
        make_environment(at / "venv", python, f"{wheel}[cli]", at=at)
        run(binaries / "tarry", "init", "shop", at=at)
        requirements = (project / "requirements-dev.txt").read_text()
        copy = re.compile(r"^-e \./layers/tarry(\[.+\])$", re.MULTILINE)
        if not copy.search(requirements):
            raise Refused("requirements-dev.txt of the made project does not install its copy of tarry")
        (project / "requirements-wheel.txt").write_text(copy.sub(rf"tarry\1 @ {wheel.as_uri()}", requirements))
        install(at / "venv", "--requirement", "requirements-wheel.txt", at=project)
        run(binaries / "pytest", "-q", at=project)
        run(binaries / "tarry", "local", "--event", "events/shop.json", "--skip-time", at=project)


def make_environment(folder: Path, python: Path, requirement: str, at: Path) -> None:
    """Make an environment without pip, which would be one more package in it, and install a requirement."""
    run(python, "-m", "venv", "--without-pip", folder, at=at)
    install(folder, requirement, at=at)


def install(environment: Path, *arguments: str, at: Path) -> None:
    """Install packages into an environment, with the pip that runs here."""
    run(sys.executable, "-m", "pip", "--python", environment, "install", "-qq", *arguments, at=at)


def write_sboms(source: Path, wheel: Path, out: Path, version: str, cyclonedx: Path) -> None:
    """Write the contents of an installation of the wheel with all extras, and of the Powertools layer (CycloneDX)."""
    with TemporaryDirectory() as folder:
        environment, pyproject = Path(folder, "venv"), Path(folder, "pyproject.toml")
        make_environment(environment, Path(sys.executable), f"{wheel}[all]", at=source)
        text = (source / "pyproject.toml").read_text()  # hatchling reads its version elsewhere, CycloneDX does not
        pyproject.write_text(text.replace('dynamic = ["version", ', f'version = "{version}"\ndynamic = ['))
        root = ("--pyproject", pyproject, "--mc-type", "library")
        listed = out / "tarry.cdx.json"
        run(cyclonedx, "environment", "--output-reproducible", *root, "-o", listed, environment, at=source)
    listed, powertools = out / "tarry-powertools.cdx.json", source / "layers/powertools/requirements.txt"
    run(cyclonedx, "requirements", "--output-reproducible", "-o", listed, powertools, at=source)


def write_checksums(out: Path) -> None:
    """Write SHA256SUMS, which ``sha256sum --check`` reads."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines))
