"""The project that `tarry init` makes: its tests, its event, its template, and its copy of tarry.

tests/unit/cli/test_init.py tests the command itself.
"""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tarry.tools.scaffold.files import names_of, project_files, this_python, write_project
from tests.acceptance.runtime import link_packages
from tests.deploy.environment import interpreter
from tests.network import free_port

pytest_plugins = ["pytester"]
SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_project(tmp_path / "my-shop", project_files(names_of("my-shop"), this_python()))
    return tmp_path / "my-shop"


def run(folder: Path, *command: str | Path, **variables: str) -> str:
    """Run a command in the folder, without an AWS account; return its output. It must succeed."""
    others = ("AWS_", "MAKE", "PYTEST_", "PYTHON")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(others)},
        "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "SAM_CLI_TELEMETRY": "0",
        **variables,
    }
    words = [str(part) for part in command]
    result = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_its_tests_pass_its_code_is_formatted_and_make_run_processes_its_event(
    project: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of the first steps has the output of such an event, and runs it."""
    monkeypatch.chdir(project)
    pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider").assert_outcomes(passed=3)
    run(project, SCRIPTS / "ruff", "check", "--quiet")
    run(project, SCRIPTS / "ruff", "format", "--quiet", "--check")
    command = run(project, "make", "--dry-run", "--old-file=.venv/.ready", "run").split("tarry ")[-1].split()
    assert command == ["local", "--event", "events/my-shop.json", "--skip-time"]
    assert (project / command[2]).exists()


def test_sam_builds_its_template(project: Path) -> None:
    """tests/integration/functions/test_template.py checks it with cfn-lint."""
    run(project, SCRIPTS / "sam", "build")
    built = project / ".aws-sam" / "build"
    assert sorted(path.name for path in (built / "MyShopFunction").iterdir()) == ["app.py", "requirements.txt"]
    names = {path.name for path in (built / "TarryLayer" / "python" / "tarry").iterdir()}
    assert {"consumer.py", "py.typed"} <= names
    assert not names & {"scaffold", "cli", "testing"}
    assert [path.name for path in (built / "TarryLayer").iterdir()] == ["python"]


def test_its_rehearsal_deploys_the_stack_without_aws_and_shows_a_dead_letter(project: Path, tmp_path: Path) -> None:
    (tmp_path / "translator").mkdir()
    link_packages(tmp_path / "translator", "aws-sam-translator")
    # What `make rehearse` would install.
    ministack = project / ".venv" / "ministack" / "bin" / "ministack"
    ministack.parent.mkdir(parents=True)
    main = f"import sys; sys.path.append('{tmp_path / 'translator'}'); from ministack.app import main; main()"
    ministack.write_text(f'#!/bin/sh\nexec "{interpreter()}" -c "{main}"\n')
    ministack.chmod(0o755)
    options = ["--old-file=.venv/.ready", "--old-file=.venv/ministack/.ready"]
    variables = {"GATEWAY_PORT": str(free_port()), "SAM_CLI_POLL_DELAY": "0.2", "COLUMNS": "150"}
    shown = run(project, "make", *options, "rehearse", TMPDIR=str(tmp_path), **variables)
    assert "Successfully created/updated stack - rehearsal" in shown
    assert "fatal: app.CardDeclined: order o-6: the card was declined" in shown.rpartition("\n$ ")[2]


def test_a_rehearsal_whose_ministack_ends_at_its_start_shows_its_log_alone(project: Path) -> None:
    ministack = project / ".venv" / "ministack" / "bin" / "ministack"
    ministack.parent.mkdir(parents=True)
    ministack.write_text("#!/bin/sh\necho the port is in use\n")
    ministack.chmod(0o755)
    result = subprocess.run(["sh", "rehearse.sh"], cwd=project, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (1, "the port is in use\n", "")
