"""Refusing a handler that a consumer cannot call, or that expects another argument. Each error has the line to write.

Only a handler that is more than a function of one `Message` or `Batch` loads this module.
"""

from __future__ import annotations

from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, get_origin

from tarry.errors import ConfigurationError
from tarry.message.batch import Batch
from tarry.message.message import Message
from tarry.message.payloads import (
    alternatives,
    annotations_of,
    body_model_of,
    describes_record,
    is_of_powertools,
    resolved,
    shown,
)
from tarry.run.handlers import is_async, is_generator

_TAKES_VARARGS = 0x04  # inspect's flag, without its import


class Role(NamedTuple):
    """One of the two decorators, with the argument that it passes."""

    decorator: str
    kind: type
    argument: str
    passes: str

    def line(self, function: object, model: str | None = None) -> str:
        """Return the first line of the handler as it should be written."""
        name = getattr(function, "__name__", "")
        name = name if name.isidentifier() and name != "__call__" and not isinstance(function, type) else "handler"
        kind = f"{self.kind.__name__}[{model}]" if model else self.kind.__name__
        return f"{'async ' if is_async(function) else ''}def {name}({self.argument}: {kind}) -> None:"


MESSAGE = Role("@consumer", Message, "message", "one message")
BATCH = Role("@batch_consumer", Batch, "batch", "the whole batch")


def refuse_mistakes(function: Any, takes_batch: bool) -> None:
    """Refuse a function that cannot be the handler of a consumer.

    A decorator of the user's may change what the function below it gets, so what is below one is not checked.

    Raises:
        ConfigurationError: With the line to write instead.
    """
    role = BATCH if takes_batch else MESSAGE
    _refuse_other_objects(function, role)
    if isinstance(function, partial):
        _refuse_unfit_partial(function, role)
        return
    signature = Signature.of(function)
    while signature is not None:
        _refuse_signature(signature, role)
        below = signature.function.__dict__.get("__wrapped__")
        if below is None:
            _refuse_annotation(signature, role)
            return
        module = signature.function.__globals__.get("__name__")
        if not is_of_powertools(module):
            return
        if ".idempotency." in str(module):
            raise ConfigurationError(
                f"{signature.function.__qualname__} cannot be a handler: @idempotent_function takes its data as a "
                f"keyword argument, and {role.decorator} passes {role.passes} by position. Put @idempotent_function on "
                'a function that the handler calls, "def charge(order):", and call it with '
                "\"charge(order=message.json())\"; the page 'From Powertools' of tarry's docs has an example"
            )
        signature = Signature.of(below, signature.bound)


class Signature:
    """The parameters that a call of a handler fills; those that are bound already are left out."""

    def __init__(self, function: FunctionType, bound: int) -> None:
        code = function.__code__
        self.function = function
        self.bound = bound
        self.positional = code.co_varnames[bound : code.co_argcount]
        self.keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
        self.needed = len(self.positional) - len(function.__defaults__ or ())
        self.has_unset_keywords = bool({*self.keyword_only} - {*(function.__kwdefaults__ or {})})
        takes_any = bool(self.positional or code.co_flags & _TAKES_VARARGS)
        self.takes_one = takes_any and self.needed <= 1 and not self.has_unset_keywords
        scope = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
        is_method = not bound and self.positional[:1] == ("self",) and scope not in ("", "<locals>")
        self.class_of_method = scope if is_method else None

    @classmethod
    def of(cls, function: Any, bound: int = 0) -> Signature | None:
        """Return the signature of the function that a call of ``function`` runs; None if that is not Python code."""
        if isinstance(function, staticmethod):
            function = function.__func__
        if isinstance(function, FunctionType):
            return cls(function, bound)
        method = function if hasattr(function, "__func__") else getattr(type(function), "__call__", None)  # noqa: B004
        method = getattr(method, "__func__", method)
        return cls(method, 1) if isinstance(method, FunctionType) else None

    def annotation(self) -> Any:
        """Return the type of the first argument; None if its annotation cannot be resolved, `Any` if it has none."""
        annotation = annotations_of(self.function).get(self.positional[0]) if self.positional else None
        try:
            found = resolved(annotation or Any, self.function)
        except ConfigurationError:  # a Message of a model that is unknown here; `model=` may name it
            found = None
        return found

    def __str__(self) -> str:
        names = ", ".join([*self.positional, *(["*", *self.keyword_only] if self.keyword_only else [])])
        return f"{self.function.__qualname__}({names})"


def _refuse_other_objects(function: Any, role: Role) -> None:
    line = role.line(function)
    if isinstance(function, str):
        raise ConfigurationError(
            f"{role.decorator}({function!r}) cannot choose a queue: the event source mapping in the template connects "
            f'the function to its queue. Write "{role.decorator}" above the handler'
        )
    if isinstance(function, (classmethod, property)):
        name = getattr(getattr(function, "fget", function), "__qualname__", repr(function))
        raise ConfigurationError(
            f"{name} cannot be a handler: it is a {type(function).__name__}. Write a function outside of the class: "
            f'"{line}"'
        )
    if not callable(function):
        raise ConfigurationError(
            f"{role.decorator} takes a function, got {function!r}; give settings by name, as in "
            f'"{role.decorator}(max_attempts=5)"'
        )
    if isinstance(function, type):
        is_handler = isinstance(getattr(function, "__call__", None), FunctionType)  # noqa: B004
        instead = f"handler = {role.decorator[1:]}({function.__name__}())" if is_handler else line
        raise ConfigurationError(f'{function.__name__} cannot be a handler: it is a class. Write "{instead}"')


def _refuse_unfit_partial(function: partial[Any], role: Role) -> None:
    from inspect import signature

    try:
        remaining = signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        remaining.bind(None)
    except TypeError as error:
        raise ConfigurationError(
            f"{function!r} cannot be a handler: it is called with one argument, {role.passes}, and then raises "
            f"TypeError: {error}. Let partial set all other arguments"
        ) from None


def _refuse_signature(signature: Signature, role: Role) -> None:
    line, names = role.line(signature.function), (*signature.positional, *signature.keyword_only)
    if is_generator(signature.function):
        raise ConfigurationError(
            f"{signature} cannot be a handler: it contains yield, so a call runs none of its code. Remove the yield"
        )
    if signature.class_of_method is not None:
        instance = f"{signature.class_of_method}().{signature.function.__name__}"
        raise ConfigurationError(
            f"{signature} cannot be a handler: it is a method without an object. Write "
            f'"handler = {role.decorator[1:]}({instance})" below the class'
        )
    if "lambda_context" in names:
        line, model = _with_model(signature, role)
        raise ConfigurationError(
            f"{signature} cannot be a handler: {role.decorator} passes {role.passes}, and no lambda_context. Write "
            f'"{line}"; {role.argument}.context is the Lambda context{model}'
        )
    if signature.takes_one:
        return
    if names[:1] == ("event",):
        if is_of_powertools(signature.function.__globals__.get("__name__")):
            raise ConfigurationError(
                f"{signature.function.__qualname__} cannot be a handler: a decorator of Powertools below "
                f"{role.decorator} is for Lambda handlers. Write {role.decorator} below it (only capture_method stays "
                "below); if Powertools then refuses the consumer, call it from a function, as the page 'From "
                "Powertools' of tarry's docs shows"
            )
        raise ConfigurationError(
            f"{signature} cannot be a handler: {role.decorator} makes the Lambda handler, and calls its function with "
            f'{role.passes}. Write "{line}"; {role.argument}.context is the Lambda context'
        )
    raise ConfigurationError(
        f'{signature} cannot be a handler: it is called with one argument, {role.passes}. Write "{line}"'
    )


def _refuse_annotation(signature: Signature, role: Role) -> None:
    function, found = signature.function, signature.annotation()
    leaves = alternatives(found)
    if any(_fits(each, role) for each in leaves):
        return
    parameter = f"{signature.positional[0]}: {shown(found)}"
    is_namesake = getattr(found, "__name__", "") == role.kind.__name__
    passes = f"a tarry.{role.kind.__name__}" if is_namesake else role.passes
    raise ConfigurationError(
        f"{function.__qualname__}({parameter}) cannot be a handler: {role.decorator} passes {passes}. "
        f"{_remedy(leaves[0], function, role)}"
    )


def _fits(annotation: Any, role: Role) -> bool:
    """Return whether a message, or a batch, can be passed for an annotation. True if that is not known."""
    kind = get_origin(annotation) or annotation
    if kind is Any or not isinstance(kind, type):
        return True
    if hasattr(kind, "__total__"):  # a TypedDict, which refuses issubclass
        return False
    try:
        return getattr(kind, "_is_protocol", False) or issubclass(role.kind, kind) or issubclass(kind, role.kind)
    except TypeError:
        return True


def _remedy(annotation: Any, function: FunctionType, role: Role) -> str:
    kind, parameters = get_origin(annotation) or annotation, getattr(annotation, "__args__", ())
    other = BATCH if role is MESSAGE else MESSAGE
    if kind is other.kind:
        line = role.line(function, shown(_named(annotation)) if parameters else None)
        return f'Write "{line}", or "{other.decorator}" above the function'
    if Message in {get_origin(each) or each for each in parameters}:
        more = "" if role is BATCH else f', or "@batch_consumer" above "{BATCH.line(function)}"'
        return f'Write "{role.line(function)}"{more}'
    model = _model_in(annotation)
    use = f"message.payload is the {model}" if model else _INSTEAD.get(kind.__name__, "")
    return f'Write "{role.line(function, model)}"{use and f"; {use}"}'


def _with_model(signature: Signature, role: Role) -> tuple[str, str]:
    """Return the line to write with the model that the annotation of the argument names, and a text about it."""
    first, *_ = alternatives(signature.annotation())
    model = _model_in(first)
    if model is None:
        return role.line(signature.function), ""
    payload = f", message.payload the {model}" if role is MESSAGE else ""
    named = _named(first)
    record = f", since {named.__name__} is a model of the whole record" if describes_record(named) else ""
    return role.line(signature.function, model), payload + record


def _named(annotation: Any) -> Any:
    """Return the model in a ``Message[...]`` or ``Batch[...]``, or the annotation itself."""
    if get_origin(annotation) in (Message, Batch):
        (model,) = annotation.__args__
        return model
    return get_origin(annotation) or annotation


def _model_in(annotation: Any) -> str | None:
    """Return the model of the body that an annotation names, as it is written; None if it names none."""
    named = _named(annotation)
    if describes_record(named):
        return body_model_of(named)
    has_fields = {"__pydantic_fields__", "__dataclass_fields__", "__total__"} & {*getattr(named, "__dict__", ())}
    return shown(named) if has_fields else None


_INSTEAD = {
    "SQSRecord": "message.record is the SQSRecord",
    "LambdaContext": "message.context is the LambdaContext",
    "str": "message.body is the text",
    "dict": "message.json() is the decoded body",
}
