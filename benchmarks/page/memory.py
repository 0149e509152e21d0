"""The section on memory."""

from collections.abc import Iterator

from benchmarks.contenders import BARE, BY_HAND, POWERTOOLS, TARRY
from benchmarks.page.markdown import cells_of, prose, table_head
from benchmarks.results import Row


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the section."""
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
