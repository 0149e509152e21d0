"""User objects that raise on every access: errors, signals and strings."""

from typing import Any, NoReturn

from tarry import Defer, Discard, Reject, Retry


def refuse(*_: object, **__: object) -> NoReturn:
    raise Touched


class Touched(BaseException):
    """Code of a hostile object ran. It is not an `Exception`, so that no ordinary guard catches it."""


class HostileClass(type):
    """A class whose names and bases cannot be read."""

    __getattribute__ = refuse
    __eq__ = refuse
    __hash__ = type.__hash__
    __bool__ = refuse


OPERATIONS: dict[str, Any] = dict.fromkeys(
    ["__str__", "__repr__", "__eq__", "__ne__", "__bool__", "__len__", "__format__", "__getattr__", "__iter__"], refuse
)
PROPERTIES: dict[str, Any] = dict.fromkeys(
    ["__class__", "__cause__", "__context__", "__suppress_context__", "__traceback__", "args", "message"],
    property(refuse),
)
HOSTILE = {**OPERATIONS, **PROPERTIES, "__hash__": refuse}

HostileError: Any = HostileClass("HostileError", (Exception,), {**HOSTILE, "__module__": 7})
"""An error that can be raised; every other access to it raises."""

HostileGroup: Any = HostileClass("HostileGroup", (ExceptionGroup,), {**HOSTILE, "exceptions": property(refuse)})


class HostileText(str):
    """A string that can be created; every other access to it raises."""

    __slots__ = ()
    __str__ = __repr__ = __eq__ = __hash__ = __len__ = __getitem__ = __add__ = __format__ = refuse
    __bool__ = __iter__ = __contains__ = encode = isascii = startswith = replace = refuse


class ErrorWithHostileText(Exception):
    """An error whose text is a hostile string."""

    def __str__(self) -> str:
        return HostileText("no stock")


def odd(kind: type[BaseException], *arguments: Any) -> BaseException:
    """A signal whose delay, reason, index and message cannot be read."""
    names = ["delay", "reason", "index", "message"]
    unreadable: dict[str, Any] = dict.fromkeys(names, property(refuse, lambda *_: None))
    made: Any = HostileClass("OddSignal", (kind,), {**HOSTILE, **unreadable})
    signal: BaseException = BaseException.__new__(made, *arguments)  # like a subclass without super().__init__
    return signal


def caused(cause: BaseException) -> BaseException:
    """A hostile error that was raised from ``cause``."""
    error: BaseException = HostileError("outer")
    BaseException.__cause__.__set__(error, cause)  # type: ignore[union-attr]
    return error


ERRORS: dict[str, Any] = {
    "an error": lambda: HostileError("no stock"),
    "an error with a cause": lambda: caused(HostileError("inner")),
    "a group": lambda: HostileGroup("several", [HostileError("one"), ValueError("two")]),
    "a hostile text": ErrorWithHostileText,
    "a Retry": lambda: odd(Retry),
    "a Reject": lambda: odd(Reject),
    "a Discard": lambda: odd(Discard),
    "a Defer": lambda: odd(Defer, 60),
}
