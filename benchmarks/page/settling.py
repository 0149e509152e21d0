"""The section on the settlement of a batch in which all messages fail."""

from collections.abc import Iterator

from benchmarks.page.markdown import cells_of, prose, seconds, table_head
from benchmarks.results import Row
from benchmarks.settling import LATENCY_SECONDS


def section(rows: list[Row]) -> Iterator[str]:
    """Yield the lines of the section."""
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
