"""Why a message failed: an error taken apart into type, message, traceback and fingerprint."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tarry.signals import Signal
from tarry.support.causes import chain, is_a, leaves_of, name_of, text_of, traceback_of, type_name
from tarry.support.value import Value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, TracebackType

_OURS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_LIBRARIES = (
    _OURS,
    os.path.join(os.path.dirname(os.__file__), ""),
    "/var/runtime/",
    "/var/lang/",
    "<",  # frozen, or generated: <string> is the __init__ of a dataclass, whose lines are its fields
)
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")

MAX_MESSAGE_CHARACTERS = 1_048_576
"""SQS takes no more bytes in a message, so that no record can hold a longer text."""
MAX_TRACEBACK_CHARACTERS = 262_144
MAX_LEAVES = 20
MAX_GROUP_DEPTH = 5
MAX_TOLD_LINKS = 50
"""How many errors of a chain a traceback shows, the last ones."""

MAX_LINE_BYTES = 1_024
"""Of an error's text in one line of a log. With `MAX_LOGGED_TEXT_BYTES` it is below the 4 KiB of SPEC I2."""
MAX_LOGGED_TEXT_BYTES = 2_048
"""Of the texts of an error, and of what it came from, in the traceback of a log line."""
MAX_LOGGED_CAUSE_BYTES = 512
"""Of those, the text of each error that it came from."""
MAX_LOGGED_TRACEBACK_BYTES = 16_384
"""Of a traceback in a log line, its innermost frames."""


class Diagnosis(Value):
    """An error in words, which holds neither the error nor its frames.

    ``message`` is kept apart from ``traceback``, which holds frames and types only; ``logged_traceback`` is the
    traceback as the log shows it, with texts, and empty for an error with no frames of the user's, and for a signal.
    """

    type: str
    message: str
    traceback: str
    fingerprint: str
    logged_traceback: str = ""

    def line(self, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
        """``Type: message``, as in the last line of a traceback, with at most ``limit`` characters of the message."""
        return f"{self.type}: {self.message[:limit]}" if self.message else self.type

    @property
    def logged_line(self) -> str:
        """The same as the log shows it."""
        return shortened(self.line(MAX_LINE_BYTES), MAX_LINE_BYTES)


class Diagnoses:
    """Diagnoses of one invocation. A batch handler that raises fails all its messages with one error: it is diagnosed
    once.

    The last error is kept, and its frames until `let_frames_go`.
    """

    def __init__(self) -> None:
        self._last: tuple[BaseException, TracebackType | None, Diagnosis] | None = None

    def of(self, error: BaseException) -> Diagnosis:
        """The diagnosis of ``error``, made anew only if it has been raised again since the last call."""
        trace = traceback_of(error)
        if self._last is None or self._last[0] is not error or trace not in (None, self._last[1]):
            self._last = error, trace, diagnose(error)
        return self._last[2]

    def let_frames_go(self) -> None:
        """Let go of the frames of the last error; raised again, it is diagnosed anew."""
        if self._last is not None:
            self._last = self._last[0], None, self._last[2]


def diagnose(error: BaseException) -> Diagnosis:
    """Take an error apart. Nothing that the error does (an odd ``__str__``, a broken frame) makes this fail."""
    message = error_text(error)
    traceback, logged = _tracebacks(error, message)
    return Diagnosis(type_name(error), message, traceback, fingerprint(error), logged)


def error_text(error: BaseException) -> str:
    """What the error says; for a group, what its leaves say too."""
    text = text_of(error, MAX_MESSAGE_CHARACTERS)
    if is_a(error, BaseExceptionGroup):
        text = f"{text}: {'; '.join(_within(error, MAX_GROUP_DEPTH, [MAX_LEAVES]))}"
    return text[:MAX_MESSAGE_CHARACTERS]


def _within(group: BaseExceptionGroup[BaseException], levels: int, left: list[int]) -> list[str]:
    """The texts of the errors in a group and its groups, as many as are ``left``."""
    if not levels:
        return ["..."]
    texts = []
    for error in leaves_of(group):
        if not left[0]:
            break
        left[0] -= 1
        inner = _within(error, levels - 1, left) if is_a(error, BaseExceptionGroup) else []
        text = text_of(error, MAX_MESSAGE_CHARACTERS)
        texts.append(": ".join([type_name(error), *filter(None, [text, "; ".join(inner)])]))
    return texts


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group and its groups, as many as are worth telling; however deep they are nested."""
    leaves: list[BaseException] = []
    todo: list[BaseException] = [group]
    while todo and len(leaves) < MAX_LEAVES:
        error = todo.pop()
        if is_a(error, BaseExceptionGroup):
            todo += reversed(leaves_of(error))
        else:
            leaves.append(error)
    return leaves


def one_line(error: BaseException) -> str:
    """``Type: text``, as in the last line of a traceback."""
    text = error_text(error)
    return f"{type_name(error)}: {text}" if text else type_name(error)


def shortened(text: str, limit_bytes: int) -> str:
    """The beginning of ``text``, at most ``limit_bytes`` in UTF-8; what is cut ends in an ellipsis."""
    if len(text) <= limit_bytes and (text.isascii() or len(text.encode("utf-8", "replace")) <= limit_bytes):
        return text
    kept = text[:limit_bytes].encode("utf-8", "replace")[: limit_bytes - 3]
    return kept.decode("utf-8", "ignore") + "..."


def _tracebacks(error: BaseException, message: str) -> tuple[str, str]:
    """The traceback of the error and of what it came from: without texts, and as the log shows it.

    The first is empty for an error that was not raised.
    """
    try:
        links = _told_links(error)
        bare = "\n\nwhich led to\n\n".join(f"{frames}{name}" for name, frames, _ in reversed(links))
        if len(links) == 1 and traceback_of(error) is None:
            return "", ""
        leaves = _leaves(error) if is_a(error, BaseExceptionGroup) else []
        below = [_bare_traceback(leaf) for leaf in leaves]
        bare = "\n\none of whose errors is\n\n".join([bare, *below])
        has_place = links[0][1] != "" and not is_a(error, Signal)
        return _end(bare, MAX_TRACEBACK_CHARACTERS), _logged(links, message, below) if has_place else ""
    except Exception as failure:  # noqa: BLE001 a broken frame, a loader that cannot read its source
        return f"<{name_of(type(failure))} while describing it>", ""


def _told_links(error: BaseException) -> list[tuple[str, str, BaseException]]:
    """The error and what it came from, each with its type and its frames as text."""
    from traceback import format_tb

    links: list[tuple[str, str, BaseException]] = []
    for link in chain(error):
        if len(links) == MAX_TOLD_LINKS:
            break
        links.append((type_name(link), "".join(format_tb(handler_frames(link))), link))
    return links


def _bare_traceback(error: BaseException) -> str:
    """The traceback of a leaf of a group, without texts."""
    links = _told_links(error)
    return "\n\nwhich led to\n\n".join(f"{frames}{name}" for name, frames, _ in reversed(links))


def _logged(links: Sequence[tuple[str, str, BaseException]], message: str, below: Sequence[str]) -> str:
    """The traceback in the form of Python's own, with what fits of each text."""
    left, parts = MAX_LOGGED_TEXT_BYTES, list[str]()
    for index, (name, frames, link) in enumerate(links):
        most = min(left, MAX_LOGGED_CAUSE_BYTES) if index else left - (MAX_LOGGED_CAUSE_BYTES if len(links) > 1 else 0)
        text = shortened(text_of(link, most) if index else message, most) if most > 3 else ""
        left -= len(text.encode("utf-8", "replace"))
        head = "Traceback (most recent call last):\n" if frames else ""
        parts.append(f"{head}{frames}{name}: {text}" if text else f"{head}{frames}{name}")
    told = "\n\nwhich led to\n\n".join(reversed(parts))
    told = "\n\none of whose errors is\n\n".join([told, *below])
    return _end(told, MAX_LOGGED_TRACEBACK_BYTES)


def _end(text: str, limit_characters: int) -> str:
    """The innermost frames; of one that is too long itself its beginning, which says where it is."""
    if len(text) <= limit_characters:
        return text
    innermost = text.rfind('  File "')
    if 0 <= innermost < len(text) - limit_characters + 4:
        return text[innermost : innermost + limit_characters]
    return "...\n" + text[4 - limit_characters :]


def handler_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the handler on: how tarry called it explains nothing."""
    trace = traceback_of(error)
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
    leaves = sorted({fingerprint(leaf) for leaf in _leaves(error)}) if is_a(error, BaseExceptionGroup) else []
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
            module = text_of(trace.tb_frame.f_globals.get("__name__", ""), 200)
            name, top = f"{module}:{_qualified_name(code)}", code.co_firstlineno
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
