"""The error of the tools for wrong usage."""


class UsageError(Exception):
    """An argument, a file or a template is wrong. The text is one line: the problem and the remedy.

    ``details``, such as a traceback, is shown before that line.
    """

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details
