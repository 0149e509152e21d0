"""The section on handlers that wait."""

from collections.abc import Iterator

from benchmarks.contenders import BARE, POWERTOOLS, TARRY
from benchmarks.page.markdown import cells_of, prose, seconds, table_head
from benchmarks.results import Row


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the section."""
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
