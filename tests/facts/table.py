"""The table of tests/facts/results.md: writing it, and reading the earlier results."""

import re
from collections.abc import Iterable
from datetime import date
from typing import cast

from tests.facts.registry import Kind, NotProbed, Probe, ProbeResult, sort_key

BEGIN = "<!-- facts: begin, written by `make aws-facts` -->"
END = "<!-- facts: end -->"
TARGETS = ("AWS", "simulator", "moto")

Key = tuple[str, str]
"""A fact and a claim."""
Results = dict[Key, dict[str, ProbeResult]]
"""The results of each claim, by the name of the target."""

_NOT_YET = ProbeResult("not run")
_ROW = re.compile(r"\| (\d+[a-z]?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|")
_CELL = re.compile(r"(holds|differs|not run)(?:: (.*?))?(?:, (\d{4}-\d\d-\d\d))?")
_NOT_PROBED = "*not probed: "
_NOTHING = ["-" for _ in TARGETS]
_TEXTS: dict[Kind, str] = {"absent": "-", "not run": "not run yet"}


def with_table(page: str, results: Results, probes: Iterable[Probe], not_probed: Iterable[NotProbed]) -> str:
    """Return the page with a new table between its two marks; claims without a new result keep their old one."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    known = read_table(page)
    rows = [(each.fact, _row(each, known, results)) for each in probes]
    rows += [(each.fact, _cells(each.fact, f"{_NOT_PROBED}{each.reason}*", *_NOTHING)) for each in not_probed]
    rows.sort(key=lambda row: sort_key(row[0]))  # stable: the claims of one fact keep their order
    columns = ("fact", "claim", *TARGETS)
    table = "\n".join([_cells(*columns), _cells(*("---" for _ in columns)), *(text for _, text in rows)])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def read_table(page: str) -> Results:
    """Read the results in the table of a page."""
    results: Results = {}
    for fact, claim, *cells in _ROW.findall(page.partition(BEGIN)[2].partition(END)[0]):
        if claim.startswith(_NOT_PROBED):
            continue
        results[fact, claim] = dict(zip(TARGETS, map(_parse_cell, cells), strict=True))
    return results


def _row(probe: Probe, known: Results, results: Results) -> str:
    key = (probe.fact, probe.claim)
    new = {target: result for target, result in results.get(key, {}).items() if result.kind != "not run"}
    cells = {**results.get(key, {}), **known.get(key, {}), **new}  # an earlier result stays until there is a new one
    return _cells(probe.fact, probe.claim, *(_text(cells.get(target, _NOT_YET)) for target in TARGETS))


def _cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _text(result: ProbeResult) -> str:
    if not result.detail and result.kind in _TEXTS:
        return _TEXTS[result.kind]
    detail = f": {_plain(result.detail)}" if result.detail else ""
    return f"{result.kind}{detail}{f', {result.on}' if result.on else ''}"


def _plain(detail: str) -> str:
    """Return the text without characters that would break a cell."""
    return " ".join(detail.split()).replace("|", "/").replace("<", "&lt;")


def _parse_cell(cell: str) -> ProbeResult:
    for kind, text in _TEXTS.items():
        if cell == text:
            return ProbeResult(kind)
    found = _CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"the table has a cell that the script did not write: {cell!r}")
    name, detail, on = found.groups()
    return ProbeResult(cast("Kind", name), detail or "", date.fromisoformat(on) if on else None)
