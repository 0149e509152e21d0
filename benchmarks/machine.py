"""The machine and the versions that a measurement is about."""

import importlib.metadata
import os
import platform
import re
from pathlib import Path

PACKAGES = ("aws-lambda-powertools", "boto3", "pydantic")


def describe() -> dict[str, str]:
    """Return what the page says about the machine and the versions."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}",
        **{package: importlib.metadata.version(package) for package in ("tarry", *PACKAGES)},
    }


def _processor() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()
