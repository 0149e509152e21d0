"""Make a release: ``make release VERSION=0.2.0``.

It works in a worktree of its own. The repository gets the commit, and dist/VERSION the files, at the end, if all went
well; an error or an interruption leaves neither.
"""

import shutil
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from release.artifacts import (
    PYTHONS,
    build_distributions,
    build_layers,
    pythons,
    run,
    try_wheel,
    write_checksums,
    write_sboms,
)
from release.decision import FILES, Refused, changes
from release.publishing import publishing

ROOT = Path(__file__).parents[1]


def main(version: str, cyclonedx: Path) -> int:
    try:
        print(release(ROOT, version, cyclonedx), end="")
    except Refused as error:
        print(f"make release: {error}. Nothing was changed.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make release: interrupted. Nothing was changed.", file=sys.stderr)
        return 130
    return 0


def release(root: Path, version: str, cyclonedx: Path) -> str:
    """Make a release of the repository at a root; return what to type to publish it.

    Raises:
        Refused: It cannot be made. The repository is as before.
    """
    if changed := git(root, "status", "--porcelain").splitlines():
        raise Refused(f"the tree is not clean: commit, ignore or remove {changed[0][3:]}")
    texts = {path: (root / path).read_text("utf-8") for path in FILES}
    new = changes(version, datetime.now(UTC).date(), texts, git(root, "tag").split())
    folder = Path("dist", version)
    if (root / folder).exists():
        raise Refused(f"{folder} exists; remove it")
    interpreters, start = pythons(), git(root, "rev-parse", "HEAD")
    with TemporaryDirectory(prefix="tarry-release-") as temporary:
        source, out = Path(temporary, "source"), Path(temporary, "out")
        out.mkdir()
        git(root, "worktree", "add", "--quiet", "--detach", str(source), start)
        try:
            for path, text in new.items():
                (source / path).write_text(text, "utf-8")
            run("make", "test", f"PYTHON={sys.executable}", at=source)
            wheel = build_distributions(source, out)
            for python in interpreters.values():
                try_wheel(wheel, python)
            layers = build_layers(source, out, interpreters, version)
            write_sboms(source, wheel, out, version, cyclonedx)
            write_checksums(out)
            git(source, "commit", "--quiet", "--all", "--message", f"Version {version}")
            finish(root, git(source, "rev-parse", "HEAD"), out, root / folder)
        finally:
            git(root, "worktree", "remove", "--force", str(source))
    with (root / "pyproject.toml").open("rb") as file:
        address = tomllib.load(file)["project"]["urls"]["Repository"]
    missing = [each for each in PYTHONS if each not in interpreters]
    branch = git(root, "rev-parse", "--abbrev-ref", "HEAD")
    return publishing(version, folder, branch, address, layers, missing)


def finish(root: Path, commit: str, out: Path, target: Path) -> None:
    """Copy the files to their directory, and make the commit the last one of the branch: both or neither."""
    try:
        shutil.copytree(out, target)
        git(root, "merge", "--quiet", "--ff-only", commit)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def git(at: Path, *arguments: str) -> str:
    """Return the output of a Git command."""
    result = subprocess.run(["git", *arguments], cwd=at, capture_output=True, text=True, check=False)
    if result.returncode:
        raise Refused(f"git {arguments[0]} failed ({' '.join(result.stderr.split())})")
    return result.stdout.strip("\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).absolute()))
