"""The section on an outage of an hour."""

from collections.abc import Iterator

from benchmarks.outage import BATCH, FAILING_SECONDS, LOG_LINE_BYTES, MEMORY_GB, RATE
from benchmarks.page.markdown import cells_of, prose, table_head
from benchmarks.results import Row


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the section."""
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
