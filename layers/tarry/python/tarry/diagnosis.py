"""Why a message died: an error taken apart into type, message, traceback and fingerprint."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tarry.value import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, TracebackType

_OURS = os.path.join(os.path.dirname(__file__), "")
_LIBRARIES = (
    _OURS,
    os.path.join(os.path.dirname(os.__file__), ""),
    "/var/runtime/",
    "/var/lang/",
    "<",  # frozen, or generated: <string> is the __init__ of a dataclass, whose lines are its fields
)
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")


MOST_LEAVES = 20
DEEPEST_GROUP = 5


class Diagnosis(Value):
    """An error in words. The message is kept apart from the traceback, which holds frames and types only."""

    __slots__ = ("type", "message", "traceback", "fingerprint")  # noqa: RUF023
    type: str
    message: str
    traceback: str
    fingerprint: str

    def __init__(self, type: str, message: str, traceback: str, fingerprint: str) -> None:
        self._freeze(type=type, message=message, traceback=traceback, fingerprint=fingerprint)


def diagnose(error: BaseException) -> Diagnosis:
    """All there is to say of ``error``; nothing it does (an odd ``__str__``, a broken frame) makes this fail."""
    return Diagnosis(type_name(error), error_text(error), traceback_text(error), fingerprint(error))


def type_name(error: BaseException) -> str:
    """``module.Name``, without the module for built-in errors, at most 200 characters."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[:200]


def error_text(error: BaseException) -> str:
    """What the error says; for a group, what its leaves say too."""
    text = _safely(str, error)
    if isinstance(error, BaseExceptionGroup):
        return f"{text}: " + "; ".join(_within(error, DEEPEST_GROUP))
    return text


def _within(group: BaseExceptionGroup[BaseException], levels: int) -> list[str]:
    """What the errors in a group say, those in the groups in it too."""
    if not levels:
        return ["..."]
    texts = []
    for error in group.exceptions[:MOST_LEAVES]:
        inner = _within(error, levels - 1) if isinstance(error, BaseExceptionGroup) else []
        texts.append(": ".join([type_name(error), *filter(None, [_safely(str, error), "; ".join(inner)])]))
    return texts


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group and its groups, as many as are worth telling; however deep they are nested."""
    leaves: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo and len(leaves) < MOST_LEAVES:
        error = todo.pop()
        if isinstance(error, BaseExceptionGroup):
            todo += reversed(error.exceptions)
        else:
            leaves.append(error)
    return leaves


def one_line(error: BaseException) -> str:
    """``Type: text``, as in the last line of a traceback."""
    text = error_text(error)
    return f"{type_name(error)}: {text}" if text else type_name(error)


def _safely(describe: Callable[[BaseException], str], error: BaseException) -> str:
    try:
        return describe(error)
    except Exception as failure:  # noqa: BLE001 an odd __str__ must not hide the error
        return f"<{type(failure).__name__} while describing it>"


def traceback_text(error: BaseException) -> str:
    """Frames and types of the error and of what it came from, without their messages; empty if it was not raised."""
    return _safely(_traceback_text, error)


def _traceback_text(error: BaseException) -> str:
    from traceback import format_tb

    parts = []
    for link in reversed(list(_chain(error))):
        frames = "".join(format_tb(handler_frames(link)))
        parts.append(f"{frames}{type_name(link)}")
    if len(parts) == 1 and error.__traceback__ is None:
        return ""  # said, not raised: it has no place
    text = "\n\nwhich led to\n\n".join(parts)
    leaves = _leaves(error) if isinstance(error, BaseExceptionGroup) else []
    return "\n\none of whose errors is\n\n".join([text, *(_traceback_text(leaf) or type_name(leaf) for leaf in leaves)])


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it came from, as Python's own traceback shows it."""
    seen = set[int]()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ if link.__cause__ or link.__suppress_context__ else link.__context__


def handler_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the handler on: how tarry called it explains nothing."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def fingerprint(error: BaseException) -> str:
    """The same for the same error at the same place, whatever its text says.

    A place is the chain of the user's own frames; lines count from the top of their function, so that an edit
    elsewhere in the file, another version of a library or of Python changes nothing. (But Python 3.11 to 3.13 see some
    statements of several lines in different ones of them: an ``assert``, a ``with`` of several managers.)
    """
    frames = _places(handler_frames(error))
    own = dict.fromkeys(place for place, is_own in frames if is_own)  # a recursion is one place, however deep
    leaves = sorted({fingerprint(leaf) for leaf in _leaves(error)}) if isinstance(error, BaseExceptionGroup) else []
    library = [place.rpartition(":")[0] for place, _ in frames[-1:]]  # without the line, which is not ours
    text = "\n".join([type_name(error), *leaves, *(own or library)])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _places(trace: TracebackType | None) -> list[tuple[str, bool]]:
    """The places of a traceback, each with whether it is in the user's own code."""
    places: list[tuple[str, bool]] = []
    name, top = "", 0
    while trace is not None:
        code = trace.tb_frame.f_code
        if places and code.co_name in _COMPREHENSIONS:
            places.pop()  # from Python 3.12 on it is part of its function, with no frame of its own
        else:
            name, top = f"{trace.tb_frame.f_globals.get('__name__', '')}:{_qualified_name(code)}", code.co_firstlineno
        line = trace.tb_lineno or top  # what an instrumentation put in has no line
        is_library = code.co_filename.startswith(_LIBRARIES) or "-packages" in code.co_filename
        places.append((f"{name}:{line - top}", not is_library))
        trace = trace.tb_next
    return places


def _qualified_name(code: CodeType) -> str:
    """As from Python 3.12 on, without the comprehensions that a function is within."""
    name = code.co_qualname
    for comprehension in _COMPREHENSIONS:
        name = name.replace(f"{comprehension}.", "")
    return name
