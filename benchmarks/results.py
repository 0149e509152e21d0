"""The output of a benchmark: its progress on stderr, its rows as JSON in a file or on stdout."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def progress(text: str) -> None:
    """Print what is measured now."""
    print(text, file=sys.stderr, flush=True)


def report(rows: Callable[..., Iterable[Row]]) -> None:
    """Measure, and write the rows as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="make a small pass")
    parser.add_argument("--to", type=Path, metavar="FILE", help="the file to write, instead of stdout")
    options = parser.parse_args()
    text = json.dumps(list(rows(quick=options.quick)), indent=1)
    if options.to:
        options.to.write_text(text)
    else:
        print(text)
