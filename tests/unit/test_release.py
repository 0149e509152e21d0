"""A release: what it changes, when it is refused, and what it leaves behind; and the workflows of GitHub."""

import hashlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

from release import __main__ as command
from release.artifacts import PYTHONS, Layer, write_zip
from release.decision import CHANGELOG, FILES, PACKAGE, Refused, changes
from release.publishing import publishing

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 11, 27)
TEXTS = {
    PACKAGE: '"""tarry."""\n\n__version__ = "0.1.0"\n\n_HOMES = {}\n',
    CHANGELOG: "# Changelog\n\n## Unreleased\n\n### Fixed\n\n- A bug.\n\n## 0.1.0 (2026-11-21)\n\n- All.\n",
    "README.md": "Alpha, version 0.1.0, which needs other 0.1.0.\n",
    "docs/first-steps.md": "  layers/tarry      tarry 0.1.0, for the layer\n",
}


# the decision


def test_a_release_changes_the_version_dates_the_changelog_and_names_the_version_in_pages() -> None:
    assert changes("0.2.0", TODAY, TEXTS, ["v0.1.0"]) == {
        PACKAGE: '"""tarry."""\n\n__version__ = "0.2.0"\n\n_HOMES = {}\n',
        CHANGELOG: "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-11-27)\n\n### Fixed\n\n- A bug.\n\n"
        "## 0.1.0 (2026-11-21)\n\n- All.\n",
        "README.md": "Alpha, version 0.2.0, which needs other 0.1.0.\n",
        "docs/first-steps.md": "  layers/tarry      tarry 0.2.0, for the layer\n",
    }


def test_a_page_that_does_not_name_the_version_stays() -> None:
    assert "README.md" not in changes("0.2.0", TODAY, {**TEXTS, "README.md": "# tarry\n"}, [])


@pytest.mark.parametrize(
    ("version", "changelog", "sentence"),
    [
        ("0.1.0", "", "0.1.0 is not above the version of the package, 0.1.0"),
        ("0.0.9", "", "0.0.9 is not above"),
        ("0.3.0", "", "the tag v0.3.0 exists; choose a higher version"),
        ("v0.2.0", "", "must be three numbers, as in make release VERSION=0.2.0, and is 'v0.2.0'"),
        ("0.2", "", "must be three numbers"),
        ("0.2.0\n", "", "must be three numbers"),
        ("0.02.0", "", "must be three numbers"),
        (
            "0.2.0",
            "# Changelog\n\n## Unreleased\n\n## 0.1.0 (2026-11-21)\n\n- All.\n",
            "no entry below '## Unreleased'",
        ),
        ("0.2.0", "# Changelog\n", "no entry below '## Unreleased'"),
    ],
)
def test_a_release_is_refused_in_a_sentence(version: str, changelog: str, sentence: str) -> None:
    texts = {**TEXTS, CHANGELOG: changelog or TEXTS[CHANGELOG]}
    with pytest.raises(Refused) as refused:
        changes(version, TODAY, texts, ["v0.3.0"])
    assert sentence in str(refused.value)


def test_the_next_version_of_this_repository_can_be_released() -> None:
    texts = {path: (ROOT / path).read_text() for path in FILES}
    if re.search(r"^## Unreleased\n\n## ", texts[CHANGELOG], re.MULTILINE):
        return  # just released
    new = changes("9.0.0", TODAY, texts, [])
    assert {PACKAGE, CHANGELOG, "docs/first-steps.md"} <= new.keys()
    assert f"## 9.0.0 ({TODAY})\n" in new[CHANGELOG]


# the command


def git(at: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=at, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the files that a release changes, whose `make test` succeeds."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.com")
    root = tmp_path / "repository"
    more = {
        "Makefile": "test:\n\t@grep -q 0.2.0 README.md\n", ".gitignore": "dist/\n",
        "pyproject.toml": '[project.urls]\nRepository = "https://tarry.dev/code"\n',
    }  # fmt: skip
    for name, text in {**TEXTS, **more}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet", "--initial-branch=main")
    commit(root)
    return root


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "A state")


@pytest.fixture
def release(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Make a release, of which only the builds are left out."""

    def run(version: str = "0.2.0", python: str = "3.13", **steps: Callable[..., Any]) -> int:
        def build(source: Path, out: Path) -> Path:
            assert '"0.2.0"' in (source / PACKAGE).read_text()
            (out / "tarry-0.2.0-py3-none-any.whl").write_bytes(b"wheel")
            return out / "tarry-0.2.0-py3-none-any.whl"

        nothing = dict.fromkeys(("try_wheel", "write_sboms"), lambda *_: None)
        defaults = {"build_distributions": build, "build_layers": lambda *_: [], "pythons": lambda: {python: Path("x")}}
        for name, step in {**nothing, **defaults, **steps}.items():
            monkeypatch.setattr(command, name, step)
        monkeypatch.setattr(command, "ROOT", root)
        return command.main(version, tmp_path / "cyclonedx")

    return run


def state(root: Path) -> tuple[str, ...]:
    """Return what a release might leave behind: commits, changes, tags, worktrees and files."""
    commands = ("log --all --format=%H", "status --porcelain", "tag", "worktree list")
    files = sorted(str(path) for path in root.rglob("*") if ".git" not in path.parts)
    return (*(git(root, *each.split()) for each in commands), *files)


def test_a_release_is_one_commit_and_the_files_in_dist_with_their_checksums(
    root: Path, release: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert release() == 0
    assert git(root, "log", "--format=%s").splitlines() == ["Version 0.2.0", "A state"]
    assert (git(root, "tag"), git(root, "status", "--porcelain")) == ("", "")
    assert git(root, "worktree", "list").count("\n") == 1
    assert "version 0.2.0" in (root / "README.md").read_text()
    sums = (root / "dist" / "0.2.0" / "SHA256SUMS").read_text()
    assert sums == f"{hashlib.sha256(b'wheel').hexdigest()}  tarry-0.2.0-py3-none-any.whl\n"
    shown = capfd.readouterr().out
    assert "tarry 0.2.0 is in dist/0.2.0, and its changes are the last commit of main. Nothing is published." in shown
    assert "and the wheel was not tried, for Python 3.11 and 3.12 and 3.14, which" in shown
    assert "Do not publish it yet" not in shown, "the project has an address"


def dirty(root: Path) -> None:
    (root / "new.py").touch()


def red(root: Path) -> None:
    (root / "Makefile").write_text("test:\n\t@false\n")
    commit(root)


def tagged(root: Path) -> None:
    git(root, "tag", "v0.2.0")


def built_before(root: Path) -> None:
    (root / "dist/0.2.0").mkdir(parents=True)


@pytest.mark.parametrize(
    ("prepare", "version", "sentence"),
    [
        (dirty, "0.2.0", "the tree is not clean: commit, ignore or remove new.py"),
        (tagged, "0.2.0", "the tag v0.2.0 exists; choose a higher version"),
        (lambda _: None, "0.1.0", "0.1.0 is not above the version of the package, 0.1.0"),
        (red, "0.2.0", "make test PYTHON=/.* failed"),
        (built_before, "0.2.0", "dist/0.2.0 exists; remove it"),
    ],
    ids=["dirty tree", "existing tag", "version that does not go up", "red test", "files of another release"],
)
def test_a_release_that_cannot_be_made_leaves_nothing_and_prints_one_sentence(
    prepare: Callable[[Path], None], version: str, sentence: str, root: Path, release: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    prepare(root)
    before = state(root)
    assert release(version) == 1
    assert re.fullmatch(rf"make release: {sentence}\. Nothing was changed\.\n", capsys.readouterr().err)
    assert state(root) == before


def test_an_interruption_and_a_branch_that_moved_meanwhile_leave_nothing(
    root: Path, release: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = state(root)
    assert release(try_wheel=interrupted) == 130
    assert capsys.readouterr().err == "make release: interrupted. Nothing was changed.\n"
    assert state(root) == before

    def moved(*_: object) -> None:
        (root / "more.py").touch()
        commit(root)

    assert release(try_wheel=moved) == 1
    assert "git merge failed" in capsys.readouterr().err
    assert git(root, "log", "--format=%s", "main").splitlines() == ["A state", "A state"]
    assert not list((root / "dist").iterdir())


# the files


def test_a_zip_of_the_same_files_has_the_same_bytes_at_any_time(tmp_path: Path) -> None:
    for name, mode in (("one", 0o600), ("two", 0o755)):
        (tmp_path / name / "python").mkdir(parents=True)
        files = ["b.py", "a.py"] if name == "one" else ["a.py", "b.py"]
        for file in files:
            (tmp_path / name / "python" / file).write_text(file)
            (tmp_path / name / "python" / file).chmod(mode)
        write_zip(tmp_path / name, tmp_path / f"{name}.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == ["python/a.py", "python/b.py"]
        assert {each.external_attr >> 16 for each in archive.infolist()} == {0o100644}, "Lambda's user can read them"


# publishing

LAYERS = [
    Layer("tarry", "tarry-python313", "3.13", ("arm64", "x86_64")),
    Layer("powertools", "tarry-powertools-python313-arm64", "3.13", ("arm64",)),
]


def test_what_is_printed_publishes_each_layer_in_each_region_for_everyone(tmp_path: Path) -> None:
    """A shell runs the printed commands, with an `aws` that prints its arguments."""
    text = publishing("0.2.0", Path("dist/0.2.0"), "main", "https://tarry.dev/code", LAYERS, [])
    script = text.partition("are printed:\n")[2].partition("\nTo undo")[0]
    aws = 'aws() { case "$2" in describe-regions) echo eu-west-1 us-east-1;; '
    aws += 'publish-layer-version) echo 7; echo "$@" >&2;; *) echo "$@" >&2;; esac; }\n'
    result = subprocess.run(["bash", "-euc", aws + script], capture_output=True, text=True, check=True)
    calls = [shlex.split(line) for line in result.stderr.splitlines()]
    assert len(calls) == 8
    assert " ".join(calls[0]) == (
        "lambda publish-layer-version --region eu-west-1 --layer-name tarry-python313 --zip-file "
        "fileb://dist/0.2.0/tarry-python313-0.2.0.zip --description tarry 0.2.0 --compatible-runtimes python3.13 "
        "--compatible-architectures arm64 x86_64 --query Version --output text"
    )
    assert " ".join(calls[-1]) == (
        "lambda add-layer-version-permission --region us-east-1 --layer-name tarry-powertools-python313-arm64 "
        "--version-number 7 --statement-id public --principal * --action lambda:GetLayerVersion --query Statement "
        "--output text"
    )


def test_a_project_without_an_address_is_not_to_be_published() -> None:
    text = publishing("0.2.0", Path("dist/0.2.0"), "main", "https://place.example/tarry", LAYERS, [])
    assert "Do not publish it yet: the wheel names https://place.example/tarry as the project's address." in text


# the workflows

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps_of(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_of_a_workflow_is_pinned_to_a_commit_and_keeps_no_token(path: Path) -> None:
    """actionlint checks the workflows in `make workflows`."""
    text = path.read_text()
    uses = re.findall(r"uses: ([^.\s]\S*)(.*)", text)
    assert uses
    assert [each for each, note in uses if not re.search(r"@[0-9a-f]{40}$", each) or not re.match(" # v", note)] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for step in steps_of(workflow):
        assert "actions/checkout@" not in step.get("uses", "") or step["with"]["persist-credentials"] is False


def test_the_workflows_test_each_python_and_make_targets_that_exist() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    assert workflow["jobs"]["tests"]["strategy"]["matrix"]["python"] == list(PYTHONS)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    made = {step["run"].split()[1] for path in WORKFLOWS for step in steps_of(yaml.safe_load(path.read_text()))
            if step.get("run", "").startswith("make ")}  # fmt: skip
    assert made <= set(targets)
    assert f"Programming Language :: Python :: {PYTHONS[-1]}" in (ROOT / "pyproject.toml").read_text()
