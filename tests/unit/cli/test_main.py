"""The command without its libraries, its help, and options that cannot be combined."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tarry import __version__
from tarry.tools.cli.app import app
from tarry.tools.common.installation import install_command
from tests.command import rest_of, running

ROOT = Path(__file__).parents[3]


def tarry_without(library: str, *arguments: str) -> tuple[int | None, str]:
    """Run the command as if a library were not installed; return its exit code and its output."""
    with running(*arguments, folder=ROOT, without=library) as process:
        printed = "".join(rest_of(process))
    return process.returncode, printed


@pytest.mark.parametrize(
    ("library", "arguments", "needs", "extras"),
    [
        ("typer", "local", "the command", "cli"),
        ("rich", "local", "the command", "cli"),
        *((each, "local --event e.json", "tarry local", "local") for each in ("aiohttp", "samtranslator", "boto3")),
        ("yaml", "local --event e.json", "tarry local", "local"),
        ("aiohttp", "invoke Plain -e -", "tarry invoke", "local"),
        ("boto3", "failed show --queue dlq", "this command", "aws,cli"),
        ("jmespath", "failed show --queue dlq --where attempts=1", "this command", "cli"),
        ("samtranslator", "failed show --template template.yaml", "this command", "local"),
    ],
)
def test_without_its_libraries_a_command_names_what_to_install(
    library: str, arguments: str, needs: str, extras: str
) -> None:
    text = f"tarry: {needs} needs {library}; install it with: {install_command(extras)}\n"
    assert tarry_without(library, *arguments.split()) == (2, text)


@pytest.mark.parametrize("library", ["aiohttp", "botocore", "jmespath", "samtranslator", "yaml"])
def test_init_needs_no_library_of_other_commands(library: str, tmp_path: Path) -> None:
    """The extra `cli` is all that the first steps install."""
    code, printed = tarry_without(library, "init", str(tmp_path / "shop"))
    assert (code, (tmp_path / "shop" / "template.yaml").exists()) == (0, True), printed


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


def commands(group: Any = None, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all commands and groups, each with its names."""
    group = group or typer.main.get_command(app)
    yield names, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *names, name)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_every_command_fits_the_terminal_and_has_examples_but_no_types(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for names, command in commands():
        shown = CliRunner().invoke(app, [*names, "--help"]).stdout
        assert shown.startswith(" ".join(("Usage: tarry", *names)))
        assert max(len(line) for line in shown.splitlines()) <= columns
        assert not re.search(r"<\w+|\[\[|\[bold\]|x[<>]=", shown), shown
        assert " ".join(command.help.split()) in " ".join(shown.split())
        examples = command.epilog.splitlines()
        assert shown.splitlines()[-len(examples) :] == [f"  {example}" for example in examples]
        assert all(" ".join(("tarry", *names)) in example for example in examples[: len(names)])
        options = [each for each in command.params if not getattr(each, "hidden", False)]
        assert all(max(each.opts, key=len) in shown or (each.metavar or "") in shown for each in options)


def test_without_a_command_the_help_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    result = CliRunner().invoke(app, [])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == CliRunner().invoke(app, ["--help"]).stdout


EXPECT = (
    "--expect must be STATE=N,..., got '{}'; the states are ready, in_flight, waiting_retry, committed, dead_lettered, "
    "discarded, deferred, resent"
)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("failed show --max 0", "--max must be a number, 1 or more"),
        ("failed show --max many", "--max must be a number, 1 or more"),
        ("local --port 99999", "--port must be a number, 0 to 65535"),
        ("failed show --quue dlq", "no such option: --quue. Did you mean --queue?"),
        ("send orders x --dely 3", "no such option: --dely. Did you mean --delay?"),
        ("failed shwo", "no such command 'shwo'. Did you mean 'show'?"),
        ("send", "missing argument QUEUE; see tarry send --help"),
        ("invoke Orders", "missing option --event; see tarry invoke --help"),
        (
            "failed retry --via mail",
            "--via: 'mail' is not one of 'queue', 'local', 'aws'; see tarry failed retry --help",
        ),
        *((f"local -e e.json --expect {each}", EXPECT.format(each)) for each in ("lost=1", "committed", "x=-1", "x=y")),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_do(arguments: str, line: str) -> None:
    result = CliRunner().invoke(app, arguments.split())
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"tarry: {line}\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        *(
            (each, "needs an event: add --event FILE")
            for each in ("--skip-time", "--expect committed=1", "--give-up 3")
        ),
        *(
            (f"--event e.json --skip-time {each}", f"{each.split()[0]} cannot be combined with --skip-time")
            for each in ("--endpoint-url http://127.0.0.1:4566", "--port 0")
        ),
        ("--event e.json --watch", "--watch cannot be combined with --event"),
        ("--console --event template.yaml", "--console cannot be combined with --event"),
        ("--console --endpoint-url http://127.0.0.1:9", "--console cannot be combined with --endpoint-url"),
        ("--console-port 8700", "--console-port needs --console: add it"),
    ],
)
def test_options_of_tarry_local_that_do_not_fit_together_are_refused(arguments: str, line: str) -> None:
    result = CliRunner().invoke(app, ["local", *arguments.split()])
    assert (result.exit_code, result.stdout) == (2, "")
    assert line in result.stderr


def test_the_version_needs_no_library_and_is_an_option_in_the_help() -> None:
    assert tarry_without("typer", "--version") == (0, f"tarry {__version__}\n")
    assert CliRunner().invoke(app, ["--version"]).stdout == f"tarry {__version__}\n"
    assert "--version" in CliRunner().invoke(app, ["--help"]).stdout
