"""The environment of MiniStack, and a copy of the project that is built for this machine."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.deploy.aws import KEYS

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SAM = Path(sysconfig.get_path("scripts")) / "sam"


def interpreter() -> Path:
    """Return the Python of MiniStack. The first call installs it, which takes about 15 s; others wait for it.

    Functions run in its environment, and must not find the packages of the project. There is one for each Python
    version and content of `requirements.txt`, in `build/`.
    """
    content = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:8]
    folder = ROOT / "build" / f"ministack-{sysconfig.get_python_version()}-{content}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, also by the end of the process
        if not ready.exists():
            run(sys.executable, "-m", "venv", "--without-pip", str(folder))
            packages = ("--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS))
            run(sys.executable, "-m", "pip", "--python", str(python), "install", *packages)
            ready.touch()
    return python


SOURCES = ("template.yaml", "samconfig.toml", "packages.mk", "functions", "layers")


def copy_project(target: Path) -> Path:
    """Copy what is deployed to `target`, where it can be built and changed."""
    target.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target / name)
    return target


def sam(url: str, *arguments: str, cwd: Path) -> str:
    """Run a command of SAM CLI against MiniStack, with packages built for this machine; return its output."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "PATH": os.pathsep.join([str(SAM.parent), os.environ["PATH"]]),
        "ARCH": "arm64" if platform.machine() in ("arm64", "aarch64") else "x86_64",
        "PYTHON": sysconfig.get_python_version(),
        "SAM_CLI_TELEMETRY": "0",
        **KEYS,
        "AWS_ENDPOINT_URL": url,
    }
    return run(str(SAM), *arguments, cwd=cwd, env=environment)


def run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Run a command; return its output.

    Raises:
        AssertionError: The command failed.
    """
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if result.returncode:
        called = " ".join([Path(command[0]).name, *command[1:]])
        raise AssertionError(f"{called} ended with code {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout + result.stderr
