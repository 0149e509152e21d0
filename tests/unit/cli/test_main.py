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


@pytest.mark.parametrize("library", ["moto", "samtranslator", "yaml", "boto3"])
def test_a_command_without_its_libraries_says_so(library: str) -> None:
    result = tarry_without(library, "local", "--event", "event.json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("tarry: tarry local needs ")
    assert 'pip install "tarry[local,local-aws]"' in result.stderr


def test_moto_is_wanted_in_virtual_time_only_for_what_it_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    result = tarry_without("moto", "local", "--event", "events/ledger.json", "--skip-time")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("tarry: for OrdersTable, AccountsTable, ")
    assert result.stderr.endswith('tarry local needs moto: pip install "tarry[local,local-aws]"\n')


def test_the_help_has_an_example() -> None:
    result = CliRunner().invoke(app, ["local", "--help"])
    assert result.exit_code == 0
    assert "tarry local --event events/orders.json" in result.stdout


def test_an_event_is_required() -> None:
    result = CliRunner().invoke(app, ["local"])
    assert result.exit_code == 2
    assert "--event" in result.stderr
