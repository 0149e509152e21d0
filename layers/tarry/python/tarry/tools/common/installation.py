"""The command that installs a library which tarry needs and does not find."""

import json
from typing import Any


def install_command(extras: str) -> str:
    """Return the command that adds extras, separated by commas, to the installed tarry.

    It names what tarry was installed from: a checkout, the copy in a project, a wheel or a Git repository.
    """
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    origin = _origin()
    url = origin.get("url", "")
    if url.startswith("file:"):
        option = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f'pip install {option}"{url2pathname(urlsplit(url).path)}[{extras}]"'
    if "vcs_info" in origin:
        return f'pip install "tarry[{extras}] @ {origin["vcs_info"]["vcs"]}+{url}"'
    return f'pip install "tarry[{extras}]"'


def _origin() -> dict[str, Any]:
    """Return what pip recorded about the origin of tarry (direct_url.json); empty if it came from an index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        origin: dict[str, Any] = json.loads(distribution("tarry").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return {}
    return origin
