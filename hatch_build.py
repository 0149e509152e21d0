"""The description of the package on an index: the README, whose relative links lead to the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<begin>(?P<picture>!?)\[[^\]]*\]\()(?!\w+:|#)(?P<path>[^)\s]+)")


class LinkedReadme(MetadataHookInterface):
    """The field ``readme`` of pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": linked(text, metadata["urls"]["Repository"])}


def linked(text: str, repository: str) -> str:
    """Return a Markdown text whose relative links and pictures have an address in the repository."""

    def absolute(link: re.Match[str]) -> str:
        return f"{link['begin']}{repository}/{'raw' if link['picture'] else 'blob'}/main/{link['path']}"

    return LINK.sub(absolute, text)
