"""A private copy of the repository, so that runs of the tests with different mutants do not disturb each other."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.leftovers import marked
from tests.pages import ROOT
from tests.processes import PATIENCE_SECONDS

PACKAGE = Path("layers/tarry/python/tarry")
"""The package under test, from the root of the repository or of a copy."""


def files() -> list[Path]:
    """Return the files of the repository that git does not ignore, from its root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(Path(each) for each in listed.split("\0") if (ROOT / each).is_file())


@contextmanager
def private_copy() -> Iterator[Path]:
    """Copy the repository into a temporary folder, which shares the virtual environment and what `build` has."""
    with tempfile.TemporaryDirectory(prefix="tarry-mutants-") as folder:
        root = Path(folder, "repository")
        for each in files():
            (root / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / each, root / each)
        for shared in (".venv", "build"):
            if (ROOT / shared).exists():
                (root / shared).symlink_to(ROOT / shared)
        yield root


def run_tests(root: Path, arguments: Sequence[str], limit: float, extra: Mapping[str, str] | None = None) -> str | None:
    """Run pytest in a copy and return what it prints, or `None` for a run that passes.

    A run that takes more than ``limit`` seconds has failed. Its processes are killed, those in other sessions included.
    Each process may have 8 GB at most: a mutant may fill a list without end.
    """
    mark = uuid.uuid4().hex
    paths = [*filter(None, [(extra or {}).get("PYTHONPATH")]), str(root / PACKAGE.parent)]
    environment = {**os.environ, **(extra or {}), "PYTHONPATH": os.pathsep.join(paths), "TARRY_MUTANT": mark}
    limited = ["sh", "-c", 'ulimit -d 8000000; exec "$@"', "sh"]
    command = [
        *limited,
        *[sys.executable, "-m", "pytest", "-q", "--tb=line", f"--basetemp={root.parent / 'tests'}"],
        *arguments,
    ]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_SECONDS)
            raise
        finally:
            for process_id in marked(mark):
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read()
    return None if code == 0 else text if code is not None else f"{text}\nno end within {limit:.0f} seconds"
