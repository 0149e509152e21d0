"""Write docs/performance.md and its pictures from results.

python -m benchmarks.page [FILE]

FILE is the results of `make bench`, by default build/bench/results.json.
"""

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders import BARE, BY_HAND, POWERTOOLS, TARRY
from benchmarks.outage import BATCH, FAILING_SECONDS, LOG_LINE_BYTES, MEMORY_GB, RATE
from benchmarks.picture import Bar, Picture
from benchmarks.results import Row
from benchmarks.settling import LATENCY_SECONDS

ROOT = Path(__file__).parents[1]
PAGE, IMAGES = ROOT / "docs" / "performance.md", ROOT / "docs" / "images"
RESULTS = ROOT / "build" / "bench" / "results.json"

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
    "async": (
        "Only on Python 3.11, where a task cannot start before its event loop takes a turn. tarry starts at most as "
        "many tasks at once as `concurrency=` says, one by default; Powertools starts a task for every message of the "
        "batch at once, without a limit, so it needs fewer turns. Since Python 3.12, a task starts when it is made."
    ),
    "with a model": "Both validate with pydantic; Powertools validates the whole record, tarry its body.",
    "with idempotency": (
        "Both make the same two requests for a message. tarry makes them in another thread, which is kept, so that one "
        "that hangs cannot outlast the invocation; Powertools waits for it. To pass a request to a thread and its "
        "answer back takes some 50 microseconds."
    ),
    "with metrics": (
        "tarry writes three values for each message: its attempts, its age, and the handler's time, for which it reads "
        "the clock twice. The handler with Powertools' metrics writes one value for the batch, the number of messages."
    ),
    "with exact attempts": "tarry keeps a record of each failed message; the others cannot count attempts exactly.",
}
"""Why a load is behind Powertools, by the beginning of its name."""


def write(results: dict[str, Any], page: Path, images: Path) -> None:
    """Write the page, and its pictures into the folder ``images``."""
    images.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(results).items():
        (images / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")
    page.write_text("\n".join(lines(results)), encoding="utf-8")


# the page


def lines(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = sorted(results["message_time"], key=lambda version: [int(part) for part in version.split(".")])
    newest = versions[-1]
    yield from introduction(results, versions)
    yield from message_time(results["message_time"], versions)
    yield from cold_starts(results["cold_start"], versions)
    yield from requests(next(iter(results["requests"].values())))
    yield from settling(results["settling"][newest])
    yield from io_bound(results["io_bound"][newest])
    yield from memory(results["memory"][newest])
    if "end_to_end" in results:
        yield from end_to_end(next(iter(results["end_to_end"].values())))
    yield from outage(next(iter(results["outage"].values())))


def introduction(results: dict[str, Any], versions: Sequence[str]) -> Iterator[str]:
    machine = results["machine"]
    yield "<!-- Written by `make bench`; edit benchmarks/page.py instead. -->"
    yield "# Performance"
    yield ""
    yield from prose(
        "tarry beside Powertools' batch processor, a backoff by hand, and a bare loop, measured in one "
        "run and in turns. `make bench` repeats all of it in about a quarter of an hour, `make bench "
        "QUICK=1` a part of it in two minutes."
    )
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| date | {results['date']} |"
    yield f"| machine | {machine['processor']}, {machine['cores']} cores, {machine['system']} |"
    yield f"| load of the machine before and after | {results['load_before']:.1f}, {results['load_after']:.1f} |"
    yield f"| Python | {', '.join(versions)}; a run of {results['minutes']:.0f} minutes |"
    yield f"| tarry | {machine['tarry']} |"
    yield f"| Powertools | {machine['aws-lambda-powertools']} |"
    yield f"| boto3, pydantic | {machine['boto3']}, {machine['pydantic']} |"
    yield ""
    if results["load_before"] > 1:
        yield from prose(
            "Other processes ran on the machine meanwhile. CPU times and ratios allow for that; elapsed times (the "
            "settlement, cold starts, end to end) are longer than on an idle machine."
        )
        yield ""
    yield "The contenders:"
    yield ""
    yield f"- **{BARE}**: a `for` loop with `try`; it logs the exception and reports the message as failed."
    yield f"- **{POWERTOOLS}**: `BatchProcessor`, `SqsFifoPartialProcessor` or `AsyncBatchProcessor`, as documented;"
    yield "  a failed message comes back after the queue's visibility timeout."
    yield f"- **{BY_HAND}**: the bare loop with one `change_message_visibility` for each failed message."
    yield "- **tarry**: `@consumer` with an exponential backoff."
    yield ""


def message_time(results: dict[str, list[Row]], versions: Sequence[str]) -> Iterator[str]:
    newest, others = versions[-1], versions[:-1]
    behind: dict[str, str] = {}
    yield "## Time per message"
    yield ""
    yield from prose(
        f"CPU time of the process, in microseconds per message on Python {newest}; the handler does "
        "nothing. Each figure is the median of up to 15 rounds; a ratio is the median of the ratios "
        "within a round. Requests are built and parsed by boto3, but not sent."
    )
    yield ""
    yield "![tarry's time per message as a share of Powertools', by load and batch size.](images/performance.svg)"
    yield ""
    heads = ["load", "batch", BARE, POWERTOOLS, BY_HAND, TARRY, f"{TARRY} / {POWERTOOLS}"]
    heads += [f"on {version}" for version in others]
    yield from table_head(heads, left=1)
    of_others = {version: {(row["load"], row["size"]): row for row in results[version]} for version in others}
    for row in results[newest]:
        ratios = {newest: row["ratio"]}
        ratios |= {version: of_others[version].get((row["load"], row["size"]), {}).get("ratio") for version in others}
        for version, ratio in ratios.items():
            if ratio is not None and ratio > AIMS.get(version, 1.0) + NOISE:
                behind[row["load"]] = reason(row["load"])
        cells = [
            row["load"],
            f"{row['size']:,}",
            *(number(row["us"].get(name)) for name in (BARE, POWERTOOLS, BY_HAND)),
        ]
        yield cells_of([*cells, f"**{number(row['us'][TARRY])}**", *(shown_ratio(ratio) for ratio in ratios.values())])
    yield ""
    yield from prose(
        "In the first rows tarry makes no request and writes no log line. When a message fails, tarry decides on its "
        "delay, sets it at SQS, and logs a line with the traceback, as the loop by hand does. In a batch of one, tarry "
        "takes longer than that loop: it makes the request in a thread, so that one that hangs does not cost the batch "
        "its response. From ten failures on, one request for ten messages makes up for it."
    )
    yield ""
    if behind:
        yield "Where tarry takes longer than Powertools:"
        yield ""
        for load, why in behind.items():
            yield from prose(f"- *{load}*: {why}", indent="  ")
        yield ""


def reason(load: str) -> str:
    """Return why a load is behind."""
    return next(why for name, why in BEHIND.items() if load.startswith(name))


def cold_starts(results: dict[str, list[Row]], versions: Sequence[str]) -> Iterator[str]:
    newest = versions[-1]
    yield "## Cold start"
    yield ""
    yield from prose(
        "Fresh processes under Lambda's runtime client, with the layers as `sam build` makes them, on "
        f"Python {newest}. Medians of 15 starts. SQS answers after 5 ms. The first batch has one message."
    )
    yield ""
    yield "![The time to load the function and to handle the first batch, by contender.](images/cold-start.svg)"
    yield ""
    yield from table_head(
        ["first batch", "contender", "load, ms", "first batch, ms", "both on a CPU, ms", "peak memory, MB"], left=2
    )
    for row in results[newest]:
        if row["kind"] == "start":
            yield cells_of([row["load"], row["function"], *start_cells(row)])
    yield ""
    yield from prose(
        "The first failure of a process loads boto3 with one client, and looks up the source queue. A "
        "process in which no message fails never does: that is the reason for the difference to the "
        "backoff by hand, which loads boto3 in any case."
    )
    yield ""
    yield from prose(
        f"CPU time to import, and modules, after what the runtime client has loaded (`{'import tarry'}`: "
        "in a bare interpreter):"
    )
    yield ""
    yield from table_head(["import", *(f"{version}, ms" for version in versions), "modules"], left=1)
    imports = {version: [row for row in results[version] if row["kind"] == "import"] for version in versions}
    for index, row in enumerate(imports[newest]):
        times = [number(imports[version][index]["ms"]) for version in versions]
        yield cells_of([row["function"], *times, f"{row['modules']:.0f}"])
    yield ""
    shipped = [row for rows in results.values() for row in rows if row["kind"] == "shipped"]
    if shipped:
        yield "The functions of this repository, with their first message; the services are moto:"
        yield ""
        yield from table_head(
            ["function", "load, ms", "first batch, ms", "both on a CPU, ms", "peak memory, MB"], left=1
        )
        yield from (cells_of([row["function"], *start_cells(row)]) for row in shipped)
        yield ""


def start_cells(row: Row) -> list[str]:
    return [*(f"{row[name]:.0f}" for name in ("load_ms", "first_ms", "cpu_ms")), f"{row['peak_mb']:.0f}"]


def requests(rows: list[Row]) -> Iterator[str]:
    yield "## Requests"
    yield ""
    yield from prose(
        "Requests to SQS and DynamoDB of a batch of ten, and the fewest possible. Look-ups of a queue are not counted: "
        "tarry makes them once in 15 minutes. Lambda deletes the messages that succeed. Powertools cannot delay or "
        "dead-letter a message."
    )
    yield ""
    yield from table_head(["batch", "fewest possible", POWERTOOLS, BY_HAND, TARRY], left=1)
    for row in rows:
        made = [row["fewest"], *(row["requests"].get(name) for name in (POWERTOOLS, BY_HAND, TARRY))]
        yield cells_of([row["case"], *("" if each is None else f"{sum(each.values())}" for each in made)])
    yield ""


def settling(rows: list[Row]) -> Iterator[str]:
    milliseconds = LATENCY_SECONDS * 1000
    yield "## Settlement"
    yield ""
    yield from prose(
        "One invocation in which all messages fail, against a server that answers each request after "
        f"{milliseconds:.0f} ms. *boto3 alone* is ten threads that make the same requests and do nothing "
        "else; *bare loop* logs the same failures with their tracebacks, and makes no request. The columns on the "
        "right are the CPU time of the process, which other load on the machine affects less."
    )
    yield ""
    heads = ["messages", "requests", "fewest possible", "seconds", "latency bound", "boto3 alone"]
    yield from table_head([*heads, "CPU seconds", "of boto3 alone", "of the bare loop"], left=1)
    for row in rows:
        fewest = f"{sum(row['fewest'].values()):,}" if "fewest" in row else ""
        bounds = [seconds(row.get(name)) for name in ("latency_bound", "boto3_alone")]
        cpu = [
            f"**{seconds(row['cpu_seconds'])}**",
            *(seconds(row.get(name)) for name in ("cpu_of_boto3", "cpu_of_loop")),
        ]
        made = [f"{sum(row['requests'].values()):,}", fewest]
        yield cells_of([f"{row['messages']:,} {row['case']}", *made, f"**{seconds(row['seconds'])}**", *bounds, *cpu])
    yield ""
    by_hand = next(row for row in rows if "measured" in row)
    yield from prose(
        f"By hand, {by_hand['measured']:,} messages were measured; the time of more grows with their number. The "
        "requests of tarry above the fewest possible are those of short delays, which are set before the batch ends, "
        "and of slices of 100 messages, which are settled while the others run."
    )
    yield ""
    yield from prose(
        "The aim was 1.3 times the latency bound. tarry misses it: the bound assumes requests that take no work, and "
        f"Python runs one thread at a time. boto3's own work on the requests takes {_times(rows, 'boto3_alone')} the "
        "bound. What tarry adds is the work on each failure: its diagnosis, the decision, the plan, the log line, and "
        f"the failure record of a dead letter. All in all, the CPU time is {_times(rows, 'cpu_seconds')} that of boto3 "
        "alone and the bare loop together."
    )
    yield ""


def _times(rows: list[Row], name: str) -> str:
    """Return how many times a figure is its bound: the latency bound, or the CPU time of boto3 and the bare loop."""
    bounded = [row for row in rows if "latency_bound" in row]
    if name == "cpu_seconds":
        ratios = [row[name] / (row["cpu_of_boto3"] + row["cpu_of_loop"]) for row in bounded]
    else:
        ratios = [row[name] / row["latency_bound"] for row in bounded]
    return " and ".join(f"{ratio:.1f}" for ratio in ratios) + " times"


def io_bound(rows: list[Row]) -> Iterator[str]:
    yield "## Handlers that wait"
    yield ""
    yield from prose(
        f"{rows[0]['messages']:,} messages of 100 ms; seconds for the batch. The bare loop is a "
        "`ThreadPoolExecutor` or an `asyncio.Semaphore`."
    )
    yield ""
    yield from table_head(["handlers", "at once", "ideal", "by hand", TARRY, "above the ideal"], left=1)
    for row in rows:
        times = {name: each["seconds"] for name, each in row["times"].items()}
        if POWERTOOLS in times:
            continue
        over = times[TARRY] / row["ideal"] - 1
        cells = [row["kind"], f"{row['concurrency']}", seconds(row["ideal"]), seconds(times[BARE])]
        yield cells_of([*cells, f"**{seconds(times[TARRY])}**", f"{over:.1%}"])
    yield ""
    for row in rows:
        times = {name: each["seconds"] for name, each in row["times"].items()}
        if POWERTOOLS in times:
            yield from prose(
                f"Powertools' `AsyncBatchProcessor` starts all {row['messages']:,} at once and takes "
                f"{seconds(times[POWERTOOLS])} s; tarry with `concurrency=1000` takes "
                f"{seconds(times[TARRY])} s."
            )
    yield ""


def memory(rows: list[Row]) -> Iterator[str]:
    first = rows[0]
    yield "## Memory"
    yield ""
    yield from prose(
        f"Bytes per message at the peak of an invocation with {first['messages']:,} messages, without the "
        "event itself; and the blocks of memory that an invocation with ten messages leaves behind, over "
        f"{first['invocations']:,} invocations. A leak would be at least one block."
    )
    yield ""
    names = [BARE, POWERTOOLS, BY_HAND, TARRY]
    yield from table_head(["load", *names, *(f"growth, {name}" for name in (POWERTOOLS, TARRY))], left=1)
    for row in rows:
        growth = row.get("growth", {})
        kept = [f"{growth[name]:.3f}" if name in growth else "" for name in (POWERTOOLS, TARRY)]
        yield cells_of([row["load"], *(f"{row['bytes'][name]:,.0f}" for name in names), *kept])
    yield ""


def end_to_end(rows: list[Row]) -> Iterator[str]:
    yield "## End to end"
    yield ""
    yield from prose(
        f"Messages a second with {rows[0]['waiting']:,} waiting, in batches of {BATCH}. These are the "
        "figures of the emulators, on the machine that they share with the functions; they say little "
        "about AWS, where Lambda runs many environments."
    )
    yield ""
    places = list(dict.fromkeys(row["where"] for row in rows))
    rates = {(row["where"], row["function"]): row["rate"] for row in rows}
    yield from table_head(["contender", *places], left=1)
    for name in dict.fromkeys(row["function"] for row in rows):
        yield cells_of([name, *(f"{rates[place, name]:,.0f}" for place in places)])
    yield ""


def outage(rows: list[Row]) -> Iterator[str]:
    yield "## An outage of an hour"
    yield ""
    yield from prose(
        f"A service is down for an hour in which {RATE} messages a second arrive. Each delivery fails "
        f"after {FAILING_SECONDS:.0f} s; batches of {BATCH}, {MEMORY_GB * 1000:.0f} MB, us-east-1, arm64, "
        f"prices of November 2026 without the free tier; a log line has {LOG_LINE_BYTES:,} bytes. Computed "
        "message by message, with tarry's own backoff (30 s, 90 s, 270 s, 810 s, then 900 s)."
    )
    yield ""
    heads = [
        "a failed message comes back after",
        "failed deliveries of a message",
        "SQS requests",
        "SQS",
        "Lambda",
        "logs",
        "total",
    ]
    yield from table_head([*heads, "receives needed", "last message after"], left=1)
    for row in rows:
        dollars = [*row["dollars"].values()]
        cells = [row["strategy"], f"{row['failed_deliveries']:.1f}", f"{row['requests']:,.0f}"]
        cells += [f"${each:,.2f}" for each in [*dollars, sum(dollars)]]
        yield cells_of([*cells, str(row["receives_needed"]), f"{row['last_after_minutes']:.0f} min"])
    yield ""
    yield from prose(
        "*Receives needed*: a lower `maxReceiveCount` (without tarry) or `max_attempts` (with tarry) "
        "dead-letters messages before the outage ends. *Last message after*: when the last message "
        "succeeds after the end of the outage; this is the price of long delays, and `maximum=` bounds "
        "it. Powertools adds no requests of its own; its messages come back as those of a plain loop."
    )
    yield ""
    yield "See [what it costs](guides/costs.md) for the requests of a single message."
    yield ""


# text and tables


def prose(text: str, indent: str = "") -> list[str]:
    """Return a paragraph in lines, all but the first indented. Code is not broken."""
    unbroken = re.sub("`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(unbroken, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def table_head(heads: Sequence[str], left: int) -> Iterator[str]:
    """Yield the two first lines of a table, with the first columns to the left."""
    yield cells_of(heads)
    yield "|" + "".join("---|" if index < left else "---:|" for index in range(len(heads)))


def cells_of(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def number(value: float | None) -> str:
    """Return three figures: 0.78, 13.5, 1,490."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 20 else f"{value:.2f}"


def shown_ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# the pictures


def pictures(results: dict[str, Any]) -> dict[str, Picture]:
    """Return the pictures by name, all of the newest Python that was measured."""
    version = max(results["message_time"], key=lambda each: [int(part) for part in each.split(".")])
    return {
        "performance": ratios(results["message_time"][version], version),
        "cold-start": starts(results["cold_start"][version], version),
    }


LONGEST_RATIO = 2.0
WITHOUT_COMPARISON = ("10 % fail", "all fail")


def ratios(rows: list[Row], version: str) -> Picture:
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


def starts(rows: list[Row], version: str) -> Picture:
    """Return a bar for each contender, without and with a failure in the first batch."""
    bars, before = [], None
    found = [row for row in rows if row["kind"] == "start"]
    for row in found:
        head = row["load"] if row["load"] != before else ""
        before = row["load"]
        text = f"{row['load_ms']:.0f} + {row['first_ms']:.0f} ms, {row['peak_mb']:.0f} MB"
        bars.append(Bar(row["function"], [row["load_ms"], row["first_ms"]], ["part", "good"], text, head))
    longest = max(row["load_ms"] + row["first_ms"] for row in found)
    title = f"Cold start: loading the function, then its first batch, Python {version}"
    subtitle = (
        "Medians of fresh processes. Each bar: loading, then the first batch, which is without or with a failure."
    )
    return Picture(title, subtitle, bars, longest)


if __name__ == "__main__":
    write(json.loads(Path(sys.argv[1] if sys.argv[1:] else RESULTS).read_text()), PAGE, IMAGES)
