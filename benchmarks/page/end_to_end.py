"""The section on messages a second, end to end."""

from collections.abc import Iterator

from benchmarks.outage import BATCH
from benchmarks.page.markdown import cells_of, prose, table_head
from benchmarks.results import Row


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the section."""
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
