"""Text of messages and errors, safe to show: it must not move the cursor."""


def printable(text: str, keep: str = "") -> str:
    """The text with its control characters escaped, but for those to ``keep``."""
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in text
    )
