"""Where a thread stands, for errors that name it."""

import traceback
from pathlib import Path
from types import FrameType

_TARRY = str(Path(__file__).parent.parent)
_DEBUGGERS = frozenset({"bdb", "pdb", "pydevd"})
MOST_FRAMES = 12


def in_debugger(frame: FrameType | None) -> bool:
    """Whether somebody is looking at it in a debugger."""
    while frame is not None:
        if frame.f_globals.get("__name__") in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def stack_of(frame: FrameType) -> str:
    """The stack, innermost last, without tarry's own frames at its beginning."""
    lines = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=MOST_FRAMES)
    lines.reverse()
    while len(lines) > 1 and (lines[0].filename.startswith(_TARRY) or lines[0].filename.endswith("threading.py")):
        del lines[0]
    return "".join(lines.format()).rstrip()


def caller_of(frame: FrameType) -> str:
    """``file:line in function()``."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}()"
