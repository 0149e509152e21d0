"""The section and the picture of cold starts."""

from collections.abc import Iterator, Sequence

from benchmarks.page.markdown import cells_of, number, prose, table_head
from benchmarks.picture import Bar, Picture
from benchmarks.results import Row


def section(results: dict[str, list[Row]], versions: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the section."""
    newest = versions[-1]
    yield "## Cold start"
    yield ""
    yield from prose(
        "Fresh processes under Lambda's runtime client, with the layers as `sam build` makes them, on "
        f"Python {newest}. Medians of 15 starts. SQS answers after 5 ms. The first batch has one message."
    )
    yield ""
    yield from prose(
        "Until 26 November 2026, this page said that a function with tarry loads in 57 ms. That was about 40 ms too "
        "few: the first start wrote bytecode into the tarry layer, which cannot be written to on Lambda, and the "
        "others used it. Now the layer has bytecode, and the measure writes none."
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
        "The first failure of a process loads botocore, the part of boto3 that tarry needs, makes one client, and "
        "looks up the source queue. A process with 512 MB or more in which no message fails does none of this, and so "
        "differs from the backoff by hand, which loads boto3 in any case."
    )
    yield ""
    yield from prose(
        "CPU time to import, and modules, after what the runtime client has loaded (`import tarry`: "
        "in a bare interpreter):"
    )
    yield ""
    yield from table_head(["import", *(f"{version}, ms" for version in versions), "modules"], left=1)
    imports = {version: [row for row in results[version] if row["kind"] == "import"] for version in versions}
    for index, row in enumerate(imports[newest]):
        times = [number(imports[version][index]["ms"]) for version in versions]
        yield cells_of([row["function"], *times, f"{row['modules']:.0f}"])
    yield ""
    small = [row for row in results[newest] if row["kind"] == "small"]
    memories = list(dict.fromkeys(row["memory"] for row in small))
    yield from prose(
        "Small functions with tarry. Lambda gives a function a whole core while it loads, and then a share that grows "
        "with its memory: a fourteenth of a core with 128 MB, 0.29 of one with 512 MB. Below 512 MB, tarry loads boto3 "
        "while the function loads, so that a first failure does not take seconds "
        "([why](decisions/0015-loading-boto3.md)). The milliseconds to load the function + those of its first batch:"
    )
    yield ""
    yield from table_head(["the message", *(f"{memory} MB" for memory in memories)], left=1)
    for batch in dict.fromkeys(row["batch"] for row in small):
        found = {row["memory"]: row for row in small if row["batch"] == batch}
        yield cells_of([batch, *(f"{found[each]['load_ms']:.0f} + {found[each]['first_ms']:.0f}" for each in memories)])
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


def picture(rows: list[Row], version: str) -> Picture:
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
