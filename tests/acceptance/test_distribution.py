"""The wheel and the sdist of tarry, and the wheel of the copy in a project."""

import re
import shutil
import subprocess
import sys
import tarfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import tarry
from tarry.tools.scaffold.files import names_of, project_files, this_python

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, path: Path | None = None) -> str:
    environment = {"PYTHONPATH": str(path)} if path is not None else None
    result = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_and_the_sdist_are_complete_and_init_works_from_the_wheel(tmp_path: Path) -> None:
    # Without --wheel and --sdist, the wheel is built from the sdist.
    run("-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ROOT)
    [wheel], [sdist] = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    run("-m", "twine", "check", "--strict", wheel, sdist)
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames()}
    assert folders == {"layers", ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}

    installed, project = tmp_path / "installed", tmp_path / "project"
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", installed, wheel)
    assert (installed / "tarry" / "py.typed").exists()
    assert run(installed / "bin" / "tarry", "--version", path=installed) == f"tarry {tarry.__version__}\n"
    run(installed / "bin" / "tarry", "init", project, path=installed)
    made = {path.relative_to(project): path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert made == project_files(names_of("project"), this_python())

    run("-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "copy", project / "layers" / "tarry")
    [copy] = (tmp_path / "copy").glob("*.whl")
    assert contents(copy) == contents(wheel)
    ours, theirs = metadata(wheel), metadata(copy)
    for name in ("Name", "Version", "Requires-Python", "Requires-Dist", "License-Expression"):
        assert ours.get_all(name) == theirs.get_all(name)


def test_a_copy_of_the_layer_can_be_installed_with_pip_as_that_of_a_project(tmp_path: Path) -> None:
    copied = shutil.copytree(ROOT / "layers" / "tarry", tmp_path / "tarry", symlinks=True)
    files = project_files(names_of("project"), this_python())
    for name in ("LICENSE", "Makefile", "pyproject.toml"):
        assert (copied / name).read_bytes() == files[Path("layers", "tarry", name)]


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel but for its metadata."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not re.search(r"/(METADATA|RECORD)$", name)}


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        [name] = (each for each in archive.namelist() if each.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())
