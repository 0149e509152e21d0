"""The section and the picture of the time per message; it explains each load in which tarry is behind Powertools."""

from collections.abc import Iterator, Sequence

from benchmarks.contenders import BARE, BY_HAND, POWERTOOLS, TARRY
from benchmarks.page.markdown import cells_of, number, prose, shown_ratio, table_head
from benchmarks.picture import Bar, Picture
from benchmarks.results import Row

AIMS = {"3.11": 1.1}
"""The highest ratio to Powertools by Python version; 1.0 for the others."""
NOISE = 0.03
"""A row counts as behind if it misses its aim by more than this."""

POWERTOOLS_DOES_LESS = (
    "Powertools reports the message as failed and does no more: no delay, no dead letter, no log line. Compare tarry "
    "with the backoff by hand."
)
SAME_LOOP = "The loop is at the cost of Powertools' within the noise of the machine."
BEHIND = {
    "all succeed": SAME_LOOP,
    "10 % fail": POWERTOOLS_DOES_LESS,
    "all fail": POWERTOOLS_DOES_LESS,
    "FIFO": SAME_LOOP,
    "async": SAME_LOOP,
    "with a model": "Both validate with pydantic; Powertools validates the whole record, tarry its body.",
    "with idempotency": (
        "Both make the same two requests for a message, with short timeouts. The first request of a process, and those "
        "of a client with boto3's own timeouts, tarry makes in another thread (50 microseconds more), so that one that "
        "hangs does not outlast the invocation."
    ),
    "with metrics of each message": (
        "Both write the attempts, the age and the handler's time of each message. For a batch of one, the line itself "
        "takes most of the time."
    ),
    "with metrics": (
        "tarry writes three values for each message, the handler with Powertools' metrics one for the batch; for the "
        "same values by both, see *with metrics of each message*."
    ),
    "with exact attempts": "tarry keeps a record of each failed message; the others cannot count attempts exactly.",
}
"""Why a load is behind Powertools, by the beginning of its name."""


def section(results: dict[str, list[Row]], versions: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the section."""
    yield "## Time per message"
    yield ""
    yield from prose(
        f"CPU time of the process, in microseconds per message on Python {versions[-1]}; the handler does "
        "nothing. Each figure is the median of up to 15 rounds; a ratio is the median of the ratios "
        "within a round. Requests are built and parsed by boto3, but not sent."
    )
    yield ""
    yield "![tarry's time per message as a share of Powertools', by load and batch size.](images/performance.svg)"
    yield ""
    yield from table(results, versions)
    yield ""
    yield from prose(
        "In the first rows tarry makes no request and writes no log line. When a message fails, tarry decides on its "
        "delay, sets it at SQS, and logs a line with the traceback, as the loop by hand does. In a batch of one, tarry "
        "takes longer than that loop: it makes the request in a thread, so that one that hangs does not cost the batch "
        "its response. From ten failures on, one request for ten messages makes up for it."
    )
    yield ""
    if behind := loads_behind(results, versions):
        yield "Where tarry takes longer than Powertools:"
        yield ""
        loads: dict[str, list[str]] = {}
        for load in behind:
            loads.setdefault(reason(load), []).append(f"*{load}*")
        for why, those in loads.items():
            yield from prose(f"- {', '.join(those)}: {why}", indent="  ")
        yield ""


def table(results: dict[str, list[Row]], versions: Sequence[str]) -> Iterator[str]:
    """Yield a row for each load and batch size: times on the newest Python, ratios to Powertools on all."""
    heads = ["load", "batch", BARE, POWERTOOLS, BY_HAND, TARRY, f"{TARRY} / {POWERTOOLS}"]
    yield from table_head([*heads, *(f"on {version}" for version in versions[:-1])], left=1)
    for row in results[versions[-1]]:
        others = [number(row["us"].get(name)) for name in (BARE, POWERTOOLS, BY_HAND)]
        times = [*others, f"**{number(row['us'][TARRY])}**"]
        ratios = ratios_of(row["load"], row["size"], results, versions).values()
        yield cells_of([row["load"], f"{row['size']:,}", *times, *map(shown_ratio, ratios)])


def loads_behind(results: dict[str, list[Row]], versions: Sequence[str]) -> list[str]:
    """Return the loads in which tarry takes longer than it aims at, with a batch of any size, on any Python."""
    return list(
        dict.fromkeys(
            row["load"]
            for row in results[versions[-1]]
            for version, ratio in ratios_of(row["load"], row["size"], results, versions).items()
            if ratio is not None and ratio > AIMS.get(version, 1.0) + NOISE
        )
    )


def ratios_of(load: str, size: int, results: dict[str, list[Row]], versions: Sequence[str]) -> dict[str, float | None]:
    """Return the ratios of tarry to Powertools by version, of the newest Python first; None if not measured."""
    newest_first = [versions[-1], *versions[:-1]]
    return {
        version: next((row["ratio"] for row in results[version] if (row["load"], row["size"]) == (load, size)), None)
        for version in newest_first
    }


def reason(load: str) -> str:
    """Return why a load is behind."""
    return next(why for name, why in BEHIND.items() if load.startswith(name))


LONGEST_RATIO = 2.0
WITHOUT_COMPARISON = ("10 % fail", "all fail")


def picture(rows: list[Row], version: str) -> Picture:
    """Return a bar for each row that both tarry and Powertools can do."""
    bars, before = [], None
    for row in rows:
        if row["ratio"] is None or row["load"] in WITHOUT_COMPARISON:
            continue
        kind = "good" if row["ratio"] <= 1 + NOISE else "bad"
        text = f"{row['ratio']:.2f}: {number(row['us'][TARRY])} µs, Powertools {number(row['us'][POWERTOOLS])} µs"
        head = row["load"] if row["load"] != before else ""
        before = row["load"]
        bars.append(Bar(f"batch of {row['size']:,}", [row["ratio"]], [kind], text, head))
    title = f"Time per message: tarry as a share of Powertools, Python {version}"
    subtitle = "CPU time of batches that succeed; shorter is better. Longer bars than twice Powertools are cut."
    return Picture(title, subtitle, bars, LONGEST_RATIO, mark=(1.0, "Powertools"))
