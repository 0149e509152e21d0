"""Run MiniStack, with the SAM translator at hand, until the process that started it ends. Run by `ministack.py`.

The argument is a folder with the packages of the SAM translator. MiniStack imports it when a template needs it. The
functions that MiniStack starts do not see the folder: it is not in the environment of the process.
"""

import os
import signal
import sys
import threading


def end_with_the_parent() -> None:
    """Kill this process and the functions when stdin closes, which it does however the parent process ends."""
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    sys.path.append(sys.argv.pop())
    from ministack.app import main

    main()
