"""A copy of the project, built for the machine that MiniStack runs on."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.aws import KEYS
from tests.deploy.environment import ROOT, SAM

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
    """Run a command of SAM CLI against MiniStack, with packages built for this machine; return its output.

    Raises:
        AssertionError: The command failed.
    """
    return run(str(SAM), *arguments, cwd=cwd, env={**_for_this_machine(), **KEYS, "AWS_ENDPOINT_URL": url})


def _for_this_machine() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "PATH": os.pathsep.join([str(SAM.parent), os.environ["PATH"]]),
        "ARCH": "arm64" if platform.machine() in ("arm64", "aarch64") else "x86_64",
        "PYTHON": f"{sys.version_info.major}.{sys.version_info.minor}",
        "SAM_CLI_TELEMETRY": "0",
    }


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
