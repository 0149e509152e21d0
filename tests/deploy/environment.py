"""The environment of MiniStack, with its own Python packages: functions run in it, and must not find the project's."""

import fcntl
import hashlib
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SAM = Path(sysconfig.get_path("scripts")) / "sam"


def interpreter() -> Path:
    """Return the Python of the environment. The first call installs it, which takes about 15 s; others wait for it.

    There is one for each Python version and content of `requirements.txt`, in `build/`.

    Raises:
        RuntimeError: pip could not install the packages.
    """
    content = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:8]
    folder = ROOT / "build" / f"ministack-{sysconfig.get_python_version()}-{content}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, also by the end of the process
        if not ready.exists():
            _run(sys.executable, "-m", "venv", "--without-pip", str(folder))
            packages = ("--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS))
            _run(sys.executable, "-m", "pip", "--python", str(python), "install", *packages)
            ready.touch()
    return python


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
