"""Functions that run here under another version of Python than on Lambda."""

from collections.abc import Iterator, Mapping

from tarry.tools.check.finding import Finding, listed, subject
from tarry.tools.check.runtimes import Version, text_of

RULE = "W9002"
OLDEST: Version = (3, 11)
"""The oldest version that tarry runs under."""


def other_python(versions: Mapping[str, Version], here: Version) -> Iterator[Finding]:
    """Find the functions whose ``Runtime`` has another version of Python; one finding for all of them.

    Args:
        versions: The versions in the template, by logical id of the function.
        here: The version under which functions run here.
    """
    other = {name: version for name, version in versions.items() if version != here}
    if not other:
        return
    by_version = {wanted: [name for name in other if other[name] == wanted] for wanted in sorted({*other.values()})}
    who = "Functions run" if len(other) == len(versions) else subject(list(other), "runs", "run")
    if len(by_version) == 1:
        [version] = by_version
        wanted = text_of(version)
        named, remedy = f"python{wanted}", f"To run them under {wanted} here too, install tarry under Python {wanted}."
        if version < OLDEST:
            remedy = f"tarry needs Python {text_of(OLDEST)} or later: update the Runtime."
    else:
        named = listed(f"python{text_of(each)} ({', '.join(names)})" for each, names in by_version.items())
        remedy = "To run a function under its own version, install tarry under that version."
    yield Finding(RULE, tuple(other), f"{who} under Python {text_of(here)} here; the template says {named}. {remedy}")
