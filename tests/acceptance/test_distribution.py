"""The wheel and the sdist of tarry, and the wheel of the copy in a project."""

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import hatchling.build
import pytest
from markdown_it import MarkdownIt
from twine.commands.check import check

import tarry
from tarry.tools.scaffold.files import names_of, project_files, this_python

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys, tarry; print(tarry.__file__, tarry.__version__); from tarry.cli import main; main()"


def test_the_wheel_and_the_sdist_are_complete_init_works_and_the_description_has_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel is built from the sdist, as `python -m build` builds it."""
    monkeypatch.chdir(ROOT)
    sdist = tmp_path / hatchling.build.build_sdist(str(tmp_path))
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames()}
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(tmp_path / "unpacked")
    assert folders == {
        "layers", ".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml",
    }  # fmt: skip
    monkeypatch.chdir(next((tmp_path / "unpacked").iterdir()))
    wheel = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    assert not check([str(wheel), str(sdist)], strict=True)
    installed, project = tmp_path / "installed", tmp_path / "project"
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert (installed / "tarry" / "py.typed").exists()
    [entry_points] = installed.glob("*.dist-info/entry_points.txt")
    assert "tarry = tarry.cli:main" in entry_points.read_text().splitlines()
    command = [sys.executable, "-c", PROGRAM, "init", str(project)]
    result = subprocess.run(command, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True, check=False)
    assert result.stdout.startswith(f"{installed / 'tarry' / '__init__.py'} {tarry.__version__}\n"), result.stderr
    made = {path.relative_to(project): path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert made == project_files(names_of("project"), this_python())
    monkeypatch.chdir(project / "layers" / "tarry")
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / hatchling.build.build_wheel(str(tmp_path / "copy"))
    assert contents(copy) == contents(wheel)
    ours, theirs = metadata(wheel), metadata(copy)
    for name in ("Name", "Version", "Requires-Python", "Requires-Dist", "License-Expression"):
        assert ours.get_all(name) == theirs.get_all(name)
    each_link_and_picture_has_an_address(ours)


def each_link_and_picture_has_an_address(description: Message) -> None:
    """Check the description on an index, which hatch_build.py makes of README.md, whose links are relative."""
    addresses = list(addresses_of(str(description.get_payload())))
    assert len(addresses) == len(list(addresses_of((ROOT / "README.md").read_text("utf-8")))) > 15
    assert [each for each in addresses if not each.startswith("https://")] == []
    repository = str(description["Project-URL"]).removeprefix("Repository, ")
    assert f"{repository}/blob/main/docs/first-steps.md" in addresses
    assert f"{repository}/raw/main/docs/images/run.svg" in addresses, "a picture is not a page about the file"


def addresses_of(markdown: str) -> Iterator[str]:
    """Yield the targets of links and pictures."""
    for block in MarkdownIt("gfm-like", {"linkify": False}).parse(markdown):
        for token in block.children or ():
            if target := token.attrs.get("href", token.attrs.get("src")):
                yield str(target)


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel but for its metadata."""
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not re.search(r"/(METADATA|RECORD)$", name)}


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        [name] = (each for each in archive.namelist() if each.endswith("/METADATA"))
        return Parser().parsestr(archive.read(name).decode())
