"""The command that installs a library which tarry needs and does not find."""

import json
from pathlib import Path
from typing import Any


def install_command(extras: str) -> str:
    """Return the command that adds extras, separated by commas, to the tarry that runs.

    It names what tarry was installed from, or the directory of the package: another project may have the name at an
    index.
    """
    return f"pip install {_source(extras)}"


def _source(extras: str) -> str:
    """Return the argument of pip, quoted: a directory, a wheel, an address, or a name if it came from an index."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    origin = _origin()
    if origin is None:
        home = Path(__file__).resolve().parents[4]
        return f'"{home if (home / "pyproject.toml").exists() else "PATH-TO-TARRY"}[{extras}]"'
    url = origin.get("url", "")
    if url.startswith("file:"):
        option = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f'{option}"{url2pathname(urlsplit(url).path)}[{extras}]"'
    if url:
        address = f"{origin['vcs_info']['vcs']}+{url}" if "vcs_info" in origin else url
        return f'"tarry[{extras}] @ {address}"'
    return f'"tarry[{extras}]"'


def _origin() -> dict[str, Any] | None:
    """Return what pip recorded about the origin of tarry (direct_url.json): empty for an index, None without pip."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin: dict[str, Any] = json.loads(distribution("tarry").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    return origin
