"""The errors with which Powertools' batch processor fails some messages of a batch. It only logs them, at DEBUG.

The runtime clients run this file by its path, in the process of a function: it imports only the standard library.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable

LOGGER = "aws_lambda_powertools.utilities.batch.base"
MARK = "tarry.record_error "
"""The beginning of a line with the error of a message, for `tarry local`."""
MOST_CHARACTERS = 2_000


class RecordErrors(logging.Handler):
    """A handler that calls ``on_error`` with the delivery id of a failed message and its error."""

    def __init__(self, on_error: Callable[[str, str], None]) -> None:
        super().__init__(logging.DEBUG)
        self._on_error = on_error

    def emit(self, record: logging.LogRecord) -> None:
        # The processor logs within its except clause. The first frame of the traceback is its own, with the message.
        error = sys.exc_info()[1]
        if error is None or error.__traceback__ is None or not record.getMessage().startswith("Record processing"):
            return
        message = error.__traceback__.tb_frame.f_locals.get("record")
        if isinstance(message, dict) and isinstance(message.get("messageId"), str):
            self._on_error(message["messageId"], _text(error))


def _text(error: BaseException) -> str:
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in each.filename]
    place = f" [{os.path.basename(frames[-1].filename)}:{frames[-1].lineno}]" if frames else ""
    return f"{type(error).__name__}: {error}"[:MOST_CHARACTERS] + place


def watch(on_error: Callable[[str, str], None]) -> None:
    """Call ``on_error`` from now on in this process; a second call has no effect."""
    logger = logging.getLogger(LOGGER)
    if not any(isinstance(each, RecordErrors) for each in logger.handlers):
        logger.addHandler(RecordErrors(on_error))
        logger.setLevel(logging.DEBUG)


def write_line(message_id: str, error: str) -> None:
    """Write a line that `read_line` reads."""
    os.write(1, f"{MARK}{json.dumps([message_id, error])}\n".encode())


def read_line(line: str) -> tuple[str, str] | None:
    """Return the delivery id and the error of a message; None for any other line."""
    if not line.startswith(MARK):
        return None
    try:
        message_id, error = json.loads(line.removeprefix(MARK))
    except (ValueError, TypeError):
        return None
    return str(message_id), str(error)


if __name__ == "__main__":
    watch(write_line)
