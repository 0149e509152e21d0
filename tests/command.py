"""The command `tarry` as a process of its own."""

import sys

TARRY = [
    sys.executable,
    "-c",
    # Tests started in the background of a shell or under nohup ignore signals; child processes would inherit that.
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "[signal.signal(each, signal.SIG_DFL) for each in (signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)]; "
    "from tarry.cli import main; main()",
]
