"""Write the generated pages of docs/reference/, and the pictures: ``python -m docs.generator``."""

import re
import sys
import tomllib
from pathlib import Path

from docs.generator import command, messages, metrics, picture, resources, rules, sqs_api
from docs.generator.source import Source

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "reference"
IMAGES = DOCS.parent / "images"
PICTURES = {
    IMAGES / "run.svg": picture.sample_run,
    IMAGES / "sandbox.svg": picture.sandbox_run,
    IMAGES / "story.svg": picture.story,
    IMAGES / "plan.svg": picture.plan,
    IMAGES / "outage.svg": picture.outage,
}


def pages(found: messages.Messages) -> dict[Path, str]:
    """Return the text of each page, with its generated parts replaced, by path."""
    parts = {
        DOCS / "messages.md": messages.parts(found, messages.read_meanings()),
        DOCS / "check.md": rules.parts(),
        DOCS / "metrics.md": metrics.parts(),
        DOCS / "command.md": command.parts(),
        DOCS / "local.md": resources.parts(),
        DOCS / "sqs-api.md": sqs_api.parts(),
    }
    written = {path: with_parts(path.read_text("utf-8"), each) for path, each in parts.items()}
    clone = [ROOT / "docs" / name for name in ("first-steps.md", "existing-project.md")]
    return written | {path: with_address(path.read_text("utf-8")) for path in clone}


def address() -> str:
    """Return the address of the project's repository, which pyproject.toml has."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: str = tomllib.load(file)["project"]["urls"]["Repository"]
    return found


def with_address(page: str) -> str:
    """Return the page with the project's address in each ``git clone``."""
    return re.sub(r"^git clone \S+", f"git clone {address()}", page, flags=re.MULTILINE)


def with_parts(page: str, parts: dict[str, str]) -> str:
    """Return the page with the text between each ``<!-- generated: name -->`` and ``<!-- end -->`` replaced."""
    for name, text in parts.items():
        before, begin, rest = page.partition(f"<!-- generated: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not end:
            raise ValueError(f"the page has no marker for its generated part {name!r}")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


def main() -> int:
    found = messages.collect(Source())
    for path, text in {**pages(found), **{path: draw() for path, draw in PICTURES.items()}}.items():
        path.write_text(text, "utf-8")
        print(f"Written: {path}")
    missing = list(messages.problems(found, messages.read_meanings()))
    print(*missing, sep="\n", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
