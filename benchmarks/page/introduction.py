"""The head of the page: what was measured, on which machine, and the contenders."""

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.contenders import BARE, BY_HAND, POWERTOOLS
from benchmarks.page.markdown import prose


def section(results: dict[str, Any], versions: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the section."""
    machine = results["machine"]
    yield "<!-- Written by `make bench`; edit benchmarks/page/ instead. -->"
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
            "The machine was not idle before: elapsed times (the settlement, cold starts, end to end) may be longer "
            "than on an idle one."
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
