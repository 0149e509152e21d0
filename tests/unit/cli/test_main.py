"""The command without the libraries it is made of, and its help."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tarry.cli.app import app


def tarry_without(library: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command where a library is not installed."""
    code = f"import sys; sys.modules[{library!r}] = None; from tarry.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(library: str) -> None:
    result = tarry_without(library, "local")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f'tarry: the command needs {library}: pip install "tarry[local,local-aws]"\n'


def test_ctrl_c_while_it_is_still_loading_is_no_traceback() -> None:
    code = """
import sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from tarry.cli import main; main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.parametrize("library", ["aiohttp", "samtranslator", "yaml", "boto3"])
def test_a_command_without_its_libraries_says_so(library: str) -> None:
    result = tarry_without(library, "local", "--event", "event.json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("tarry: tarry local needs ")
    assert 'pip install "tarry[local,local-aws]"' in result.stderr


@pytest.mark.parametrize("skip", [["--skip-time"], []])
def test_moto_is_wanted_only_for_what_it_makes(skip: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    result = tarry_without("moto", "local", "--event", "events/ledger.json", *skip)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("tarry: for OrdersTable, AccountsTable, ")
    assert result.stderr.endswith('tarry local needs moto: pip install "tarry[local,local-aws]"\n')


def test_the_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["local", "--help"])
    assert result.exit_code == 0
    assert "tarry local --event events/orders.json" in result.stdout


@pytest.mark.parametrize("option", [["--skip-time"], ["--expect", "committed=1"], ["--give-up", "3"]])
def test_what_is_about_an_event_wants_one(option: list[str]) -> None:
    result = CliRunner().invoke(app, ["local", *option])
    assert result.exit_code == 2
    assert "is about the messages of an event" in result.stderr


@pytest.mark.parametrize("option", [["--endpoint-url", "http://127.0.0.1:4566"], ["--port", "0"]])
def test_skipped_time_has_no_sqs_that_others_could_reach(option: list[str]) -> None:
    result = CliRunner().invoke(app, ["local", "--event", "event.json", "--skip-time", *option])
    assert result.exit_code == 2
    assert f"{option[0]} is for real time" in result.stderr


def test_an_event_is_over_before_any_code_could_change() -> None:
    result = CliRunner().invoke(app, ["local", "--event", "event.json", "--watch"])
    assert result.exit_code == 2
    assert "--watch is for a cloud that goes on" in result.stderr


@pytest.mark.parametrize(
    ("library", "arguments"),
    [
        ("boto3", ("show", "--queue", "dlq")),
        ("jmespath", ("show", "--queue", "dlq", "--where", "attempts = 1")),
        ("samtranslator", ("show",)),
    ],
)
def test_failed_without_its_libraries_says_so(
    library: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    result = tarry_without(library, "failed", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f'tarry: this needs {library}: pip install "tarry[')
