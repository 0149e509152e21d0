"""`tarry check`: find the mistakes of a template, its functions' code, or what is deployed."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections import Counter
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tarry.failed.text import printable
from tarry.tools.cli.errors import libraries, note, refusals, refuse, wrapped
from tarry.tools.cli.options import (
    CONFIG_ENV,
    ENDPOINT_URL,
    FORCE,
    PARAMETERS,
    PROFILE,
    REGION,
    TargetOptions,
    argument,
    option,
    pairs,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.tools.check.checking import CheckReport
    from tarry.tools.check.finding import Finding

EXAMPLE = """\
tarry check
tarry check --fix
tarry check cdk.out --format sarif > tarry.sarif
tarry check --stack shop-prod
tarry check --queue https://sqs.eu-west-1.amazonaws.com/123456789012/orders"""


class Format(StrEnum):
    """The formats of findings."""

    text = "text"
    json = "json"
    sarif = "sarif"
    github = "github"


def check(  # noqa: PLR0913 the options of the command
    *,
    template: Path | None = argument(
        "TEMPLATE", "A template of SAM or CloudFormation, or the directory cdk.out; by default the one here."
    ),
    format: Format = option("--format FORMAT", "text, json, sarif or github.", Format.text),
    fix: bool = option("--fix", "Change the template where there is one safe answer; show the changes first.", False),
    force: bool = FORCE,
    parameter: list[str] | None = PARAMETERS,
    config_env: str | None = CONFIG_ENV,
    stack: str | None = option("--stack NAME", "Check a deployed stack, with the code of the template here."),
    queue: str | None = option("--queue -q URL", "Check a deployed queue and its functions; a name or a URL."),
    region: str | None = REGION,
    profile: str | None = PROFILE,
    endpoint_url: str | None = ENDPOINT_URL,
) -> None:
    """Find mistakes in a template and in the code of its functions.

    The code is read, not run. If a fact is not certain, there is no finding.
    docs/reference/check.md lists the rules.

    With --stack or --queue, the same rules apply to what is deployed. Only
    requests that read are made.

    Exit code: 0 no findings, 1 findings, 2 nothing could be checked.
    """
    if stack is not None or queue is not None:
        if fix or parameter or config_env or (stack is not None and queue is not None):
            refuse("--stack and --queue check what is deployed: give one of them, without --fix and --parameter")
        with libraries("tarry check", "local"), refusals(aws=True):
            from tarry.tools.check.deployed import check_deployed
            from tarry.tools.cli.failed.targets import AwsAccess

            access = AwsAccess(TargetOptions(region=region, profile=profile, endpoint_url=endpoint_url))
            access.say_place()
            report = check_deployed(access, stack=stack, queue=queue, template=template)
        _print(report, format, f"stack {stack}" if stack else f"queue {queue}")
        raise typer.Exit(1 if report.findings else 0)
    with libraries("tarry check", "local"):
        import samtranslator  # noqa: F401 reading a SAM template needs it, later

        import tarry.tools.check.checking  # noqa: F401 it needs the libraries
    with refusals():
        paths = _templates(template)
        if fix:
            _refuse_generated(paths)
        values = pairs(parameter or [], "--parameter")
        reports = _reports(paths, values, config_env)
        if fix:
            _fix(reports, force=force, is_shown=format is Format.text)
            reports = _reports(paths, values, config_env)
    command = "tarry check --fix" if template is None else f"tarry check {shlex.quote(str(template))} --fix"
    _print(_joined(list(reports.values())), format, ", ".join(map(str, paths)), command)
    raise typer.Exit(1 if any(each.findings for each in reports.values()) else 0)


def _templates(given: Path | None) -> list[Path]:
    """Return the templates to check: several in the output of the CDK. Raises `UsageError`."""
    from tarry.failed.usage import UsageError
    from tarry.tools.template.finding import find_template

    if given is None:
        return [find_template()]
    if not given.is_dir():
        return [given]
    if found := sorted(each for each in given.rglob("*.template.json") if ".nested." not in each.name):
        return found
    try:
        return [find_template(given)]
    except UsageError:
        raise UsageError(f"{given} has no template: name the file") from None


def _reports(paths: Sequence[Path], parameters: dict[str, str], config_env: str | None) -> dict[Path, CheckReport]:
    """Return the report of each template that can be read. Raises `TemplateError`."""
    from tarry.tools.check.checking import check_template
    from tarry.tools.template import TemplateError
    from tarry.tools.template.finding import read_samconfig

    found: dict[Path, CheckReport] = {}
    failed: list[TemplateError] = []
    for path in paths:
        try:
            configured = read_samconfig(path, config_env, is_local=False).parameters
            found[path] = check_template(path, parameters, configured)
        except TemplateError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    first = next(iter(found))
    found[first] = replace(found[first], skipped=(*found[first].skipped, *map(str, failed)))
    return found


def _joined(reports: Sequence[CheckReport]) -> CheckReport:
    from tarry.tools.check.checking import CheckReport

    findings = tuple(each for report in reports for each in report.findings)
    skipped = tuple(each for report in reports for each in report.skipped)
    return CheckReport(findings, skipped, sum(each.queues for each in reports), sum(each.consumers for each in reports))


# fixing


def _refuse_generated(paths: Sequence[Path]) -> None:
    for path in filter(_is_generated, paths):
        refuse(f"{path} is generated, and the next build would undo the changes: fix its source")


def _is_generated(path: Path) -> bool:
    from tarry.tools.template.finding import CDK_OUTPUT, is_built

    return is_built(path.resolve()) or CDK_OUTPUT in path.resolve().parts


def _number_fixable(findings: Sequence[Finding]) -> int:
    """Return how many findings `--fix` answers."""
    from tarry.tools.check.fixing import fixed

    found: dict[Path, list[Finding]] = {}
    for each in findings:
        if each.changes and each.file is not None:
            found.setdefault(each.file, []).append(each)
    return sum(len(fixed(_read(path), some)[1]) for path, some in found.items() if not _is_generated(path))


def _fix(reports: dict[Path, CheckReport], *, force: bool, is_shown: bool) -> None:
    """Write the templates with the changes that have one safe answer, after a confirmation."""
    from difflib import unified_diff

    from tarry.tools.check.fixing import fixed

    for path, report in reports.items():
        before = _read(path)
        after, answered = fixed(before, report.findings)
        if not answered:
            note(f"{path}: no finding has a safe answer: change the template by hand.")
            continue
        lines = [f"{line}\n" for line in before.splitlines()], [f"{line}\n" for line in after.splitlines()]
        diff = unified_diff(*lines, str(path), str(path))
        typer.echo(printable("".join(diff), keep="\n\t"), err=not is_shown)
        if not force and not _is_confirmed(path, len(answered)):
            note(f"{path} is not changed.")
            continue
        path.write_text(after, encoding="utf-8", newline="")
        note(f"{path}: {len(answered)} finding{'s'[: len(answered) != 1]} fixed.")


def _read(path: Path) -> str:
    """Return a template with the ends of its lines as they are."""
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def _is_confirmed(path: Path, number: int) -> bool:
    if not sys.stdin.isatty():
        note(f"Not asked, because stdin is not a terminal: tarry check --fix --force changes {path}.")
        return False
    return typer.confirm(f"Fix {_count(number, 'finding')} in {path}?", err=True)


# printing


def _print(report: CheckReport, format: Format, checked: str, command: str = "") -> None:
    if format is Format.text:
        _print_text(report, checked, command)
        return
    from tarry.tools.check import formats

    text = {Format.json: formats.as_json, Format.sarif: formats.as_sarif, Format.github: formats.as_github}[format]
    if found := text(report):
        typer.echo(found)


def _print_text(report: CheckReport, checked: str, command: str) -> None:
    from tarry.tools.check.finding import level_of

    findings = report.findings
    for text in report.skipped:
        note(f"Skipped: {text}")
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for each in findings:
        typer.echo(printable(_text_of(each, columns), keep="\n"))
    levels = Counter(level_of(each.rule) for each in findings)
    counted = " and ".join(_count(levels[level], level) for level in ("error", "warning") if levels[level])
    scope = f"{_count(report.queues, 'queue')} and {_count(report.consumers, 'function')} with a queue"
    fixable = _number_fixable(findings)
    more = f" To fix {fixable}: {command}" if fixable else ""
    typer.echo(printable(f"{checked}: {counted or f'no findings in {scope}'}.{more}"))


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s'[: number != 1]}"


def _text_of(finding: Finding, columns: int | None) -> str:
    from tarry.tools.check.formats import resource_of

    place = f"{finding.file}:{finding.line}" if finding.file else str(resource_of(finding))
    lines = wrapped(f"{place}: {finding.rule} {finding.text}", columns)
    return "\n".join([*lines, *([f"    {finding.snippet}"] if finding.snippet else []), ""])
