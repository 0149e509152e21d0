"""The command without its libraries, its help, and options that cannot be combined."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tarry import __version__
from tarry.cli.app import app
from tarry.tooling.installation import install_command


def tarry_without(library: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as if a library were not installed."""
    code = f"import sys; sys.modules[{library!r}] = None; from tarry.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_without_its_extra_the_command_names_what_to_install(library: str) -> None:
    result = tarry_without(library, "local")
    assert (result.returncode, result.stdout) == (2, "")
    install = install_command("local,local-aws")
    assert result.stderr == f"tarry: the command needs {library}; install it with: {install}\n"


def test_ctrl_c_during_the_import_prints_no_traceback() -> None:
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
def test_without_its_libraries_tarry_local_names_what_to_install(library: str) -> None:
    result = tarry_without(library, "local", "--event", "event.json")
    assert (result.returncode, result.stdout) == (2, "")
    install = install_command("local,local-aws")
    assert result.stderr == f"tarry: tarry local needs {library}; install it with: {install}\n"


@pytest.mark.parametrize("skip", [["--skip-time"], []])
def test_moto_is_needed_only_for_resources_that_it_creates(skip: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    result = tarry_without("moto", "local", "--event", "events/ledger.json", *skip)
    assert (result.returncode, result.stdout) == (2, "")
    last = result.stderr.splitlines(keepends=True)[-1]
    assert last.startswith("tarry: tarry local needs moto for OrdersTable, AccountsTable, ")
    assert last.endswith(f"; install it with: {install_command('local,local-aws')}\n")


def test_the_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["local", "--help"])
    assert result.exit_code == 0
    assert "tarry local --event events/orders.json" in result.stdout


@pytest.mark.parametrize("option", [["--skip-time"], ["--expect", "committed=1"], ["--give-up", "3"]])
def test_options_for_an_event_need_event(option: list[str]) -> None:
    result = CliRunner().invoke(app, ["local", *option])
    assert result.exit_code == 2
    assert "needs an event: add --event FILE" in result.stderr


@pytest.mark.parametrize("option", [["--endpoint-url", "http://127.0.0.1:4566"], ["--port", "0"]])
def test_skip_time_cannot_be_combined_with_an_address_of_sqs(option: list[str]) -> None:
    result = CliRunner().invoke(app, ["local", "--event", "event.json", "--skip-time", *option])
    assert result.exit_code == 2
    assert f"{option[0]} cannot be combined with --skip-time" in result.stderr


def test_watch_cannot_be_combined_with_event() -> None:
    result = CliRunner().invoke(app, ["local", "--event", "event.json", "--watch"])
    assert result.exit_code == 2
    assert "--watch cannot be combined with --event" in result.stderr


@pytest.mark.parametrize(
    ("library", "arguments", "extras"),
    [
        ("boto3", ("show", "--queue", "dlq"), "aws,cli"),
        ("jmespath", ("show", "--queue", "dlq", "--where", "attempts = 1"), "cli"),
        ("samtranslator", ("show",), "local"),
    ],
)
def test_without_its_libraries_tarry_failed_names_what_to_install(
    library: str, arguments: tuple[str, ...], extras: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    result = tarry_without(library, "failed", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"tarry: this command needs {library}; install it with: {install_command(extras)}\n"


def test_the_version_needs_no_library_and_is_an_option_in_the_help() -> None:
    result = tarry_without("typer", "--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"tarry {__version__}\n", "")
    assert CliRunner().invoke(app, ["--version"]).stdout == result.stdout
    assert "--version" in CliRunner().invoke(app, ["--help"]).stdout
