"""The template as CloudFormation sees it: translated by SAM, as JSON. `python -m tests.translation FILE` writes it."""

import json
import sys
from pathlib import Path
from typing import Any

from tarry.tools.template.document import load_document
from tarry.tools.template.reader import translate

ROOT = Path(__file__).parents[1]


def translated() -> dict[str, Any]:
    """Return the translation of template.yaml, with the defaults of its parameters."""
    document = load_document(ROOT / "template.yaml")
    defaults = {name: parameter["Default"] for name, parameter in document["Parameters"].items()}
    found, refused = translate(document, "us-east-1", defaults)
    assert refused == []
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(translated(), indent=1))
