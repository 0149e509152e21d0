"""The error of every tool for wrong input."""


class UsageError(Exception):
    """An argument, a file or a template is wrong: one line that says what, and what to do.

    ``details`` (a traceback, for example) is shown before that line.
    """

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details
