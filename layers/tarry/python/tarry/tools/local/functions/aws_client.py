"""AWS's runtime client `awslambdaric`, with the log level that `tarry local` needs to read the log of tarry.

It is run as a file, like `tarry.tools.local.functions.client`.
"""

import logging
import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parents[2] / "simulator" / "record_errors.py"), run_name="__main__")
    logging.getLogger("tarry").setLevel(logging.INFO)
    runpy.run_module("awslambdaric", run_name="__main__", alter_sys=True)
