"""The links and the code blocks of every page in the repository's root and in docs/.

How a block is checked follows from its language, and from an HTML comment on the line before it:

The blocks of a page are taken in order, in an empty folder:

- ``python`` blocks are written to the file that the first line names (``# app.py``), else to ``example.py``. Blocks of
  one file are appended. At the end every file is imported, and its tests run with tarry's `sandbox`, unless the page
  runs `pytest` itself. There are no `AWS_*` variables, whatever the shell or the Makefile sets.
- ``yaml``, ``json`` and ``toml`` blocks must parse. A first line ``# template.yaml`` writes the block to that file;
  JSON has no comments, so there ``<!-- file: events/mail.json -->`` does.
- ``sh`` blocks: each call of `tarry` must be one that the command accepts, each target of `make` must exist. After
  ``<!-- run -->`` the block's calls of `cd`, `tarry` and `pytest` run in that folder (or where the block before it
  changed to), with this repository at ``../tarry``, and must succeed.
- ``<!-- shown -->``: the block is what the run block before it prints; a line ``...`` stands for omitted lines.
- ``<!-- shown in FILE -->``: the block is part of a file that a run block before it made.
- ``<!-- not run: reason -->``: the block is not run.
"""

import json
import logging
import os
import re
import sysconfig
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

import aws_lambda_powertools  # noqa: F401 loaded here, like the next four, so that no pytest run of a page loads it
import boto3
import moto.sqs.models  # noqa: F401
import pytest
import typer
from samtranslator.yaml_helper import yaml_parse

import tarry.tools.simulator.actors
import tarry.tools.testing.sandbox  # noqa: F401
from tarry.tools.cli.app import app
from tarry.tools.scaffold.files import TEMPLATES
from tests.command import rest_of, running
from tests.pages import PAGES, ROOT, Block, Page

pytest_plugins = ["pytester"]

PARSERS: dict[str, Callable[[str], Any]] = {"yaml": yaml_parse, "json": json.loads, "toml": tomllib.loads}
LINE_NUMBERS = "\n(The line numbers are those of the page.)"


def fail(problems: list[str]) -> None:
    """Fail with one line for each problem, without a traceback."""
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)


def test_every_link_of_a_page_has_a_target() -> None:
    found = ((page, line, link, page.broken(link)) for page in PAGES for line, link in page.links())
    fail([f"{page.name}:{line}: the link {link} is broken: {why}" for page, line, link, why in found if why])


def test_every_code_block_of_a_page_is_well_formed() -> None:
    blocks = ((page, block) for page in PAGES for block in page.blocks)
    fail([f"{page.name}:{line}: {why}" for page, block in blocks for line, why in problems_of(block)])


def problems_of(block: Block) -> Iterable[tuple[int, str]]:
    if not block.language:
        yield block.line - 1, "the code block has no language; use `text` for output"
    try:
        if block.language in PARSERS:
            PARSERS[block.language](block.text)
        elif block.language == "sh":
            refused = [(line, words, refusal(words)) for line, words in block.commands()]
            yield from ((line, f"{' '.join(words)}: {why}") for line, words, why in refused if why)
    except Exception as error:  # noqa: BLE001 each parser has errors of its own
        yield block.line, f"not {block.language}: {error}"


def refusal(words: list[str]) -> str | None:
    """Return why `tarry` or `make` would refuse this command; None if it is valid."""
    program, *arguments = words
    match PurePath(program).name:
        case "make":
            texts = [(folder / "Makefile").read_text() for folder in (ROOT, TEMPLATES)]
            targets = re.findall(r"^([\w-]+):", "\n".join(texts), re.MULTILINE)
            unknown = [each for each in arguments if "=" not in each and each not in targets]
            return f"neither this Makefile nor that of tarry init has a target {unknown[0]}" if unknown else None
        case "tarry":
            command = typer.main.get_command(app)
            try:
                context = command.make_context("tarry", arguments)
                while hasattr(command, "resolve_command") and arguments:
                    name, command, arguments = command.resolve_command(context, arguments)
                    context = command.make_context(name, [*arguments], parent=context)
            except typer.Exit:  # after --help
                return None
            except Exception as error:  # noqa: BLE001 Typer exports no base class of its errors
                return str(error)
    return None


FIRST_HOUR = {
    f"{name}.md"
    for name in (
        "README",
        "docs/first-steps",
        "docs/from-powertools",
        "docs/guides/testing",
        "docs/guides/local",
    )
}
"""The pages that a new user follows."""
NEEDS = "AWS|Docker|Ctrl-C|terminal|installs packages|clones"
"""The needs of commands that a test cannot run."""


def test_every_command_of_the_first_hour_runs_or_needs_what_a_test_does_not_have() -> None:
    unmarked = [
        f"{page.name}:{block.line}: the block must run, or name one of {NEEDS}"
        for page in PAGES
        for block in page.blocks
        if page.name in FIRST_HOUR
        and block.language == "sh"
        and block.comment not in {"run", "test"}
        and not re.match(rf"not run: .*({NEEDS})", block.comment)
    ]
    fail(unmarked)


def file_of(block: Block) -> str | None:
    """Return the file that the reader of a page is to write with this block."""
    if not block.runs or block.language not in {"python", *PARSERS}:
        return None
    return block.file or ("example.py" if block.language == "python" else None)


@pytest.mark.usefixtures("without_loggers")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(file_of(block) or block.comment == "run" for block in page.blocks)],
    ids=lambda page: page.name,
)
def test_the_examples_of_a_page_run(
    page: Page, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    if any("set_tracer_provider" in block.text for block in page.blocks):
        monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", None)  # other tests have none
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    for variable, value in environment(pytester.path).items():
        monkeypatch.setenv(variable, value)
    files = follow(page, pytester, monkeypatch)
    commands = [words[0] for block in page.blocks if block.comment == "run" for _, words in block.commands()]
    if any(name.endswith(".py") for name in files) and "pytest" not in commands:
        options = ("-q", "--tb=short", "--no-header", "--import-mode=importlib")
        settings = ("-o", "python_files=*.py", "-o", "pythonpath=.")
        texts = {name: "".join(each.text for each in blocks) for name, blocks in files.items() if name.endswith(".py")}
        tests = [name for name, text in texts.items() if "def test_" in text]
        imported = set(re.findall(r"^ *(?:from|import) (\w+)", "".join(texts[name] for name in tests), re.MULTILINE))
        others = [name for name in texts if name not in tests and PurePath(name).stem not in imported]
        for names, variables in [(tests, {}), (others, ON_LAMBDA)]:
            with monkeypatch.context() as patch:
                for variable, value in variables.items():
                    patch.setenv(variable, value)
                result = run_pytest(pytester, patch, *options, *settings, *names) if names else None
            capsys.readouterr()  # discard the output of pytest: a failure includes it
            if result is not None and result.ret not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                fail([f"{page.name}: its examples fail", on_the_page(page, files, result.outlines), LINE_NUMBERS])


ON_LAMBDA = {"AWS_DEFAULT_REGION": "us-east-1"}
"""The variables of the modules that no test imports: they run on Lambda, which sets the region."""


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a reader who has not set up AWS, with `tarry` on the path.

    There is neither a region nor an account: an example that needs one sets it itself.
    """
    scripts = sysconfig.get_path("scripts")
    return {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "AWS_EC2_METADATA_DISABLED": "true",  # a look-up of credentials fails at once, not after a timeout
        "COLUMNS": "100",
    }


def at_their_lines(blocks: list[Block]) -> str:
    """Return the text of a file with each block at its line on the page, so that errors name lines of the page."""
    text = ""
    for block in blocks:
        text += "\n" * (block.line - 1 - text.count("\n")) + block.text
    return text


def on_the_page(page: Page, files: Iterable[str], output: list[str]) -> str:
    names = "|".join(re.escape(name) for name in files)
    return re.sub(rf"(?:[\w./-]*/)?(?:{names})(?=:\d|\", line)", page.name, "\n".join(output))


def run_pytest(pytester: pytest.Pytester, patch: pytest.MonkeyPatch, *arguments: str) -> pytest.RunResult:
    """Run pytest with the plugins that a reader has, in this process, which has loaded what tests of a page import."""
    patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # Hypothesis alone takes a second to load
    patch.setattr(logging.root, "handlers", [])  # the page's tests get the log lines
    return pytester.runpytest_inprocess("-p", "tarry.testing.plugin", "-p", "no:cacheprovider", *arguments)


def run_block(
    page: Page, block: Block, folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """Run the commands of a block, which must succeed; return what they print, and the folder that they change to."""
    printed = ""
    for line, (program, *arguments) in block.commands():
        output, code, written = "", 0, ""
        match program:
            case "cd":
                folder = (folder / arguments[0]).resolve()
            case "tarry":
                with (
                    pytester.path.with_name("errors").open("w+") as errors,
                    running(*arguments, folder=folder, errors=errors) as command,
                ):
                    output, code = "".join(rest_of(command)), command.returncode or 0
                    written = errors.seek(0) or errors.read()
            case "pytest":
                with monkeypatch.context() as patch:
                    patch.chdir(folder)
                    result = run_pytest(pytester, patch, *arguments)
                output, code = f"{result.stdout}\n", int(result.ret)
            case _:
                fail([f"{page.name}:{line}: {program} is none of cd, tarry and pytest"])
        if code:
            fail([f"{page.name}:{line}: the command fails, exit code {code}", output, written])
        printed += output
    return printed, folder


def follow(page: Page, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Block]]:
    """Do what a page says, in order: write its files, run its commands; return the blocks of each file.

    Each block that shows an output or an excerpt of a file is compared with it.
    """
    folder = pytester.path
    checkout = folder.parent / "tarry"
    if not checkout.exists():
        checkout.symlink_to(ROOT)
    files: dict[str, list[Block]] = {}
    printed = None
    for block in page.blocks:
        if name := file_of(block):
            files.setdefault(name, []).append(block)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(at_their_lines(files[name]), encoding="utf-8")
        elif block.comment == "run" and "make" not in (words[0] for _, words in block.commands()):
            printed, folder = run_block(page, block, folder, pytester, monkeypatch)
        elif block.shown_in:
            content = (folder / block.shown_in).read_text(encoding="utf-8")
            compare(page, block.line, unindented(block.text), unindented(content))
        elif block.comment == "shown" and printed is not None:
            compare(page, block.line, block.text, printed)
    return files


def compare(page: Page, line: int, shown: str, text: str) -> None:
    missing = [part for part in shown.split("...\n") if shape(part) not in shape(text)]
    if missing:
        fail([f"{page.name}:{line}: the text has no such lines:", *missing, "The text:", text])


def unindented(text: str) -> str:
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


def shape(text: str) -> str:
    """Return the text without real durations, versions of Python and trailing spaces."""
    return re.sub(r" +$", "", re.sub(r"\d+\.\d+ ?s\b|\bpython3\.\d+", "_", text), flags=re.MULTILINE)


CODE = ("functions", "layers/tarry/python/tarry", "tests")


def test_every_page_named_in_the_code_exists() -> None:
    names, problems = {page.name for page in PAGES}, []
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            gone = set(re.findall(r"\bdocs/[\w/-]+\.md\b", line)) - names
            problems += [f"{path.relative_to(ROOT)}:{number}: there is no page {name}" for name in sorted(gone)]
    fail(problems)
