"""Runtimes on which tarry does not run."""

from collections.abc import Iterator

from tarry.tools.check.facts import CheckedFunction
from tarry.tools.check.finding import Finding
from tarry.tools.check.runtimes import text_of, version_of

OLD_RUNTIME = "E9032"
OLDEST = (3, 11)


def old_runtime(function: CheckedFunction) -> Iterator[Finding]:
    """Find a consumer of tarry with a version of Python that tarry does not support."""
    version = version_of(function.runtime)
    if function.code is None or version is None or version >= OLDEST:
        return
    text = (
        f"{function.name} has the Runtime {function.runtime}, and tarry needs Python {text_of(OLDEST)} or later: the "
        "function cannot import it. Set:"
    )
    at = function.at.below("Runtime")
    yield Finding(OLD_RUNTIME, (function.name,), text, "Runtime: python3.13", at=at)
