"""The table in docs/platform.md: written by the script, and read again for what was shown before."""

import re
from collections.abc import Iterable
from datetime import date
from typing import cast

from tests.facts.registry import NotProbed, Probe, place_of
from tests.facts.verdict import Kind, Verdict

BEGIN = "<!-- facts: begin, written by `make aws-facts` -->"
END = "<!-- facts: end -->"
PLACES = ("AWS", "simulator", "moto")

Key = tuple[str, str]
"""A fact and a claim."""
Results = dict[Key, dict[str, Verdict]]
"""What was shown of each claim, by place."""

_NOT_YET = Verdict("not run")
_ROW = re.compile(r"\| (\d+[a-z]?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|")
_CELL = re.compile(r"(holds|differs|not run)(?:: (.*?))?(?:, (\d{4}-\d\d-\d\d))?")
_NOT_PROBED = "*not probed: "
_NOTHING = ["-" for _ in PLACES]
_TEXTS: dict[Kind, str] = {"absent": "-", "not run": "not run yet"}


def with_table(page: str, results: Results, probes: Iterable[Probe], not_probed: Iterable[NotProbed]) -> str:
    """The page with the table between its two marks; what has no result there keeps what the page has said."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    known = read_table(page)
    rows = [(each.fact, _row(each, known, results)) for each in probes]
    rows += [(each.fact, _cells(each.fact, f"{_NOT_PROBED}{each.reason}*", *_NOTHING)) for each in not_probed]
    rows.sort(key=lambda row: place_of(row[0]))  # the claims of one fact stay as they are
    columns = ("fact", "claim", *PLACES)
    table = "\n".join([_cells(*columns), _cells(*("---" for _ in columns)), *(text for _, text in rows)])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def read_table(page: str) -> Results:
    """What the page's table says."""
    results: Results = {}
    for fact, claim, *cells in _ROW.findall(page.partition(BEGIN)[2].partition(END)[0]):
        if claim.startswith(_NOT_PROBED):
            continue
        results[fact, claim] = dict(zip(PLACES, map(_verdict, cells), strict=True))
    return results


def _row(probe: Probe, known: Results, results: Results) -> str:
    key = (probe.fact, probe.claim)
    shown = {place: verdict for place, verdict in results.get(key, {}).items() if verdict.kind != "not run"}
    shown = {**results.get(key, {}), **known.get(key, {}), **shown}  # what was shown once stays until it is shown anew
    return _cells(probe.fact, probe.claim, *(_text(shown.get(place, _NOT_YET)) for place in PLACES))


def _cells(*texts: str) -> str:
    return f"| {' | '.join(texts)} |"


def _text(verdict: Verdict) -> str:
    if not verdict.detail and verdict.kind in _TEXTS:
        return _TEXTS[verdict.kind]
    detail = f": {_plain(verdict.detail)}" if verdict.detail else ""
    return f"{verdict.kind}{detail}{f', {verdict.on}' if verdict.on else ''}"


def _plain(detail: str) -> str:
    """Text that is safe in a cell."""
    return " ".join(detail.split()).replace("|", "/").replace("<", "&lt;")


def _verdict(cell: str) -> Verdict:
    for word, text in _TEXTS.items():
        if cell == text:
            return Verdict(word)
    found = _CELL.fullmatch(cell)
    if found is None:
        raise ValueError(f"the table has a cell that the script has not written: {cell!r}")
    kind, detail, on = found.groups()
    return Verdict(cast("Kind", kind), detail or "", date.fromisoformat(on) if on else None)
