"""The section on the requests of a batch."""

from collections.abc import Iterator

from benchmarks.contenders import BY_HAND, POWERTOOLS, TARRY
from benchmarks.page.markdown import cells_of, prose, table_head
from benchmarks.results import Row


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the section."""
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
