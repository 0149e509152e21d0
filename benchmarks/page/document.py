"""The page and its pictures: the order of the sections, and the Python whose results each one shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.page import (
    cold_start,
    end_to_end,
    introduction,
    io_bound,
    memory,
    message_time,
    outage,
    requests,
    settling,
)
from benchmarks.picture import Picture

ROOT = Path(__file__).parents[2]
PAGE, IMAGES = ROOT / "docs" / "performance.md", ROOT / "docs" / "images"
RESULTS = ROOT / "build" / "bench" / "results.json"


def write(results: dict[str, Any], page: Path, images: Path) -> None:
    """Write the page, and its pictures into the folder ``images``."""
    images.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(results).items():
        (images / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")
    page.write_text("\n".join(lines(results)), encoding="utf-8")


def lines(results: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the page."""
    versions = versions_in(results)
    newest = versions[-1]
    yield from introduction.section(results, versions)
    yield from message_time.section(results["message_time"], versions)
    yield from cold_start.section(results["cold_start"], versions)
    yield from requests.section(next(iter(results["requests"].values())))
    yield from settling.section(results["settling"][newest])
    yield from io_bound.section(results["io_bound"][newest])
    yield from memory.section(results["memory"][newest])
    if "end_to_end" in results:
        yield from end_to_end.section(next(iter(results["end_to_end"].values())))
    yield from outage.section(next(iter(results["outage"].values())))


def pictures(results: dict[str, Any]) -> dict[str, Picture]:
    """Return the pictures by name, all of the newest Python that was measured."""
    newest = versions_in(results)[-1]
    return {
        "performance": message_time.picture(results["message_time"][newest], newest),
        "cold-start": cold_start.picture(results["cold_start"][newest], newest),
    }


def versions_in(results: dict[str, Any]) -> list[str]:
    """Return the versions of Python that were measured, the newest last."""
    return sorted(results["message_time"], key=lambda version: [int(part) for part in version.split(".")])
