"""The changes of a release in the repository, and the reasons to refuse one, without reading or writing files."""

import re
from collections.abc import Collection, Mapping
from datetime import date

PACKAGE = "layers/tarry/python/tarry/__init__.py"
CHANGELOG = "CHANGELOG.md"
PAGES = ("README.md", "docs/first-steps.md")
"""The pages that name the version."""

FILES = (PACKAGE, CHANGELOG, *PAGES)

_VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
_UNRELEASED = re.compile(r"^## Unreleased\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


class Refused(Exception):
    """A release that cannot be made; the text is one sentence."""


def changes(version: str, today: date, files: Mapping[str, str], tags: Collection[str]) -> dict[str, str]:
    """Return the new text of each file that a release changes.

    Args:
        version: The version to release, such as 0.2.0.
        today: The date of the version in the changelog.
        files: The texts of `FILES` by path.
        tags: The tags of the repository.

    Raises:
        Refused: The version has another form, is tagged already, or does not go up, or the changelog has no entry.
    """
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", version):
        raise Refused(f"the version must be three numbers, as in make release VERSION=0.2.0, and is {version!r}")
    if f"v{version}" in tags:
        raise Refused(f"the tag v{version} exists; choose a higher version")
    current = version_of(files[PACKAGE])
    if _numbers(version) <= _numbers(current):
        raise Refused(f"{version} is not above the version of the package, {current}")
    found = _UNRELEASED.search(files[CHANGELOG])
    if found is None or not re.search(r"^- ", found[1], re.MULTILINE):
        raise Refused(f"{CHANGELOG} has no entry below '## Unreleased'")
    dated = f"## Unreleased\n\n## {version} ({today.isoformat()})\n{found[1]}"
    named = re.compile(rf"\b(tarry|version) {re.escape(current)}\b(?!\.\d)")
    texts = {
        PACKAGE: _VERSION.sub(f'__version__ = "{version}"', files[PACKAGE]),
        CHANGELOG: files[CHANGELOG].replace(found[0], dated),
        **{page: named.sub(rf"\g<1> {version}", files[page]) for page in PAGES},
    }
    return {path: text for path, text in texts.items() if text != files[path]}


def version_of(package: str) -> str:
    """Return the version that the package's `__init__.py` names."""
    found = _VERSION.search(package)
    if found is None:
        raise Refused(f"{PACKAGE} has no line with __version__")
    return found[1]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
