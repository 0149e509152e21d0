"""The names in a project, which follow from the name of its directory."""

from __future__ import annotations

import re
import unicodedata
from keyword import iskeyword
from typing import NamedTuple

DEFAULT = "orders"
MOST_CHARACTERS = 80 - len("-dlq")
"""The longest name that SQS takes, less the suffix of the dead-letter queue."""
YAML_WORDS = frozenset({"false", "no", "null", "off", "on", "true", "yes"})
WRITTEN = ("my-queue", "my_queue", "MyQueue", "My queue")
"""The names that the templates have, in the order of `ProjectNames`."""


class ProjectNames(NamedTuple):
    """The name of a project in all its forms."""

    queue: str
    """``my-queue``: the queue, and the event file."""
    module: str
    """``my_queue``: the directory of the function."""
    prefix: str
    """``MyQueue``: the beginning of the logical ids."""
    title: str
    """``My queue``: the title of the README."""

    def put_into(self, text: str) -> str:
        """Return the text of a template with these names."""
        return re.sub("|".join(WRITTEN), lambda found: self[WRITTEN.index(found[0])], text)


def names_of(directory: str) -> ProjectNames:
    """Return the names for the name of a directory: both ``MyShop`` and ``my_shop`` give the queue ``my-shop``.

    The names can be those of a queue, a Python package and a resource. Digits at the beginning are left out. A word
    that Python or YAML reserves gets the suffix ``-queue``. A name without a to z gives ``orders``.
    """
    ascii_name = unicodedata.normalize("NFKD", directory).encode("ascii", "ignore").decode()
    separated = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", ascii_name).lower()
    queue = re.sub(r"[^a-z0-9]+", "-", separated).lstrip("-0123456789")[:MOST_CHARACTERS].rstrip("-") or DEFAULT
    if iskeyword(queue) or queue in YAML_WORDS:
        queue += "-queue"
    words = queue.split("-")
    return ProjectNames(queue, "_".join(words), "".join(map(str.capitalize, words)), " ".join(words).capitalize())
