"""The command `tarry` as a process of its own."""

import sys

TARRY = [
    sys.executable,
    "-c",
    # Tests that run in the background of a shell, or under nohup, ignore signals, and what they start would do so too.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "[signal.signal(each, signal.SIG_DFL) for each in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)]; "
    "from tarry.cli import main; main()",
]
