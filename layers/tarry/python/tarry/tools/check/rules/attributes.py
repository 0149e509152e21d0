"""Messages without a place for the `Tarry` attribute."""

from collections.abc import Iterator

from tarry.tools.check.facts import Facts
from tarry.tools.check.finding import Finding

NO_ROOM = "W9033"


def no_room(facts: Facts) -> Iterator[Finding]:
    """Find sends with ten attributes, in the code of the functions, if a function is a consumer of tarry."""
    if not any(each.function and each.function.code for each in facts.mappings):
        return
    for each in facts.wide_sends:
        text = (
            f"{each.function} sends messages with {each.attributes} attributes, and SQS allows 10: a copy of such a "
            "message has no place for the Tarry attribute, so its dead letter has no failure record. Send at most 9; "
            "put the others into the body."
        )
        yield Finding(NO_ROOM, (each.function,), text, file=each.file, line=each.line)
