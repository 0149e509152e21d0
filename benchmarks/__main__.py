"""All benchmarks: `make bench` writes docs/performance.md; `make bench QUICK=1` makes a small pass into build/.

Each benchmark is a process of its own, for each Python: the one that runs this, and Python 3.13 if it is installed.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.page.document import IMAGES, PAGE, RESULTS, write
from benchmarks.results import progress

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
ON_EACH = ("message_time", "settling", "io_bound", "memory", "cold_start")
ON_ONE = ("requests", "outage", "end_to_end")
NOT_QUICK = ("end_to_end",)
OTHER = "3.13"
"""The Python to measure besides the one at hand."""


def environment_of(version: str) -> Path | None:
    """Return the Python of an environment with everything that is measured; None if that Python is not installed.

    The first call installs it, which takes about a minute.
    """
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
        return None
    requirements = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    folder = BUILD / f"bench-{version}-{hashlib.sha256(requirements).hexdigest()[:8]}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        progress(f"Installing the dependencies for Python {version} (about a minute the first time)")
        subprocess.run([found, "-m", "venv", "--clear", str(folder)], check=True)
        install = ["install", "-qq", "--constraint", "constraints.txt", "--editable", ".[all]"]
        subprocess.run([str(python), "-m", "pip", *install], cwd=ROOT, check=True)
        ready.touch()
    return python


def measure(python: Path, name: str, *, quick: bool) -> Any:
    """Run a benchmark; return its rows."""
    results = BUILD / "bench" / f"{name}.json"
    results.unlink(missing_ok=True)
    command = [str(python), "-m", f"benchmarks.{name}", "--to", str(results), *(["--quick"] if quick else [])]
    # The makefile's variables would reach the makefiles of the layers.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKEOVERRIDES")}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return json.loads(results.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="make a small pass, in less than two minutes")
    quick = parser.parse_args().quick
    (BUILD / "bench").mkdir(parents=True, exist_ok=True)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    pythons = {here: Path(sys.executable)}
    if not quick and here != OTHER and (python := environment_of(OTHER)) is not None:
        pythons[OTHER] = python
    results: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "machine": describe()}
    results["load_before"], began = os.getloadavg()[0], time.monotonic()
    for version, python in pythons.items():
        for name in ON_EACH:
            progress(f"Python {version}: {name}")
            results.setdefault(name, {})[version] = measure(python, name, quick=quick)
    for name in ON_ONE:
        if not (quick and name in NOT_QUICK):
            progress(f"Python {here}: {name}")
            results.setdefault(name, {})[here] = measure(pythons[here], name, quick=quick)
    results["load_after"], results["minutes"] = os.getloadavg()[0], (time.monotonic() - began) / 60
    RESULTS.write_text(json.dumps(results, indent=1))
    page, images = (BUILD / "performance.md", BUILD / "images") if quick else (PAGE, IMAGES)
    write(results, page, images)
    print(f"{page.relative_to(ROOT)}: written in {results['minutes']:.1f} minutes")


if __name__ == "__main__":
    main()
