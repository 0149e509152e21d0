"""The command `tarry` as a process of its own."""

import sys

TARRY = [
    sys.executable,
    "-c",
    # Tests that run in the background of a shell ignore Ctrl-C, and what they start would do so too.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from tarry.cli import main; main()",
]
