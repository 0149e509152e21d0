"""Stack traces of running threads, for error messages."""

import traceback
from pathlib import Path
from types import FrameType

_TARRY = str(Path(__file__).parents[2])
_DEBUGGERS = frozenset({"bdb", "pdb", "pydevd"})
MAX_FRAMES = 12


def in_debugger(frame: FrameType | None) -> bool:
    """Return whether a frame runs under a debugger."""
    while frame is not None:
        if frame.f_globals.get("__name__") in _DEBUGGERS:
            return True
        frame = frame.f_back
    return False


def stack_of(frame: FrameType) -> str:
    """Format the stack of a frame, innermost call last, without the outermost frames that belong to tarry."""
    lines = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=MAX_FRAMES)
    lines.reverse()
    while len(lines) > 1 and (lines[0].filename.startswith(_TARRY) or lines[0].filename.endswith("threading.py")):
        del lines[0]
    return "".join(lines.format()).rstrip()


def caller_of(frame: FrameType) -> str:
    """Return a frame's location as ``file:line in function()``."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}()"
