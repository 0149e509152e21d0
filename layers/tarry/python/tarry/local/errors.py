"""What a run can be refused for, before anything is sent."""


class UsageError(Exception):
    """Something given is wrong: one line that says what, and what to do. ``details`` (a traceback) is shown before."""

    def __init__(self, text: str, details: str = "") -> None:
        super().__init__(text)
        self.details = details
