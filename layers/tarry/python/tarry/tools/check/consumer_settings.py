"""The settings of a consumer, read from the decorator or call that makes it."""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path

from tarry.tools.check.backoffs import backoff_of
from tarry.tools.check.consumer_code import (
    BUILT_IN,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_STEPS,
    UNKNOWN_STEP,
    Attempts,
    ConsumerCode,
    Decorator,
    Step,
    Steps,
)
from tarry.tools.check.names import Names

DECORATORS = frozenset({"consumer", "batch_consumer"})
GENERICS = frozenset({"Message", "Batch"})
POWERTOOLS = "aws_lambda_powertools"


Function = ast.FunctionDef | ast.AsyncFunctionDef


class SettingsReader:
    """A reader of the settings of the consumers in a file, whose names have known meanings."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def consumer_among(self, decorators: Sequence[ast.expr], function: Function | None = None) -> ConsumerCode | None:
        """Return the consumer that one of these decorators makes of a function, the topmost first."""
        for number, each in enumerate(decorators):
            if (made := self._consumer(each, function)) is not None:
                above = (self._decorator(other) for other in decorators[:number])
                return made._replace(above=tuple(other for other in above if other is not None))
        return None

    def _consumer(self, node: ast.expr, function: Function | None) -> ConsumerCode | None:
        """Return what ``consumer``, ``consumer(...)`` or a partial of it makes; None for another expression."""
        call = node if isinstance(node, ast.Call) else None
        if self._names.name_in_tarry(call.func if call else node) not in DECORATORS:
            return None
        if call is None:
            attempts = Attempts(DEFAULT_MAX_ATTEMPTS, is_default=True)
            model = self._model(None, function)
            return ConsumerCode({"default": DEFAULT_STEPS}, attempts, model, is_backoff_known=True)
        settings = {keyword.arg: self._names.value(keyword.value) for keyword in call.keywords}
        model = self._model(settings.get("model"), function)
        if None in settings:  # **settings
            return ConsumerCode({"default": ()}, model=model)
        policy = self._policy(settings)
        made = ConsumerCode(self._lists(settings.get("on_failure")), self._attempts(policy), model)
        if policy is None or None in policy:
            return made
        match policy.get("backoff"):
            case None | ast.Constant(value=None):
                return made._replace(is_backoff_known=True)
            case node:
                backoff = backoff_of(node, self._names.name_in_tarry, self._names.value)
                return made._replace(backoff=backoff, is_backoff_known=backoff is not None)

    def _model(self, value: ast.expr | None, function: Function | None) -> tuple[Path, int] | None:
        """Return the place of the model: the setting ``model``, or ``Message[Order]`` in an annotation."""
        if value is not None and not isinstance(value, ast.Constant):
            return self._names.file.path, value.lineno
        arguments = [*function.args.posonlyargs, *function.args.args] if function else []
        for annotation in filter(None, (each.annotation for each in arguments[:1])):
            for node in ast.walk(_parsed(annotation)):
                match node:
                    case ast.Subscript(value=generic, slice=model) if self._names.name_in_tarry(generic) in GENERICS:
                        is_open = isinstance(model, ast.Name | ast.Attribute) and ast.unparse(model).endswith("Any")
                        place = self._names.file.path, annotation.lineno
                        return None if is_open or ast.unparse(model) == "object" else place
        return None

    def _policy(self, settings: Mapping[str | None, ast.expr | None]) -> Mapping[str | None, ast.expr | None] | None:
        """Return the settings of the retry policy; None if it is made elsewhere."""
        match settings.get("policy"):
            case None | ast.Constant(value=None):
                return settings
            case ast.Call(func=function, args=[], keywords=keywords) if (
                self._names.name_in_tarry(function) == "RetryPolicy"
            ):
                return {keyword.arg: self._names.value(keyword.value) for keyword in keywords}
            case _:
                return None

    def _attempts(self, policy: Mapping[str | None, ast.expr | None] | None) -> Attempts | None:
        if policy is None:
            return None
        match policy.get("max_attempts"):
            case None if None not in policy:  # no **settings
                return Attempts(DEFAULT_MAX_ATTEMPTS, is_default=True)
            case ast.Constant(value=int(number)):
                return Attempts(number, is_default=False)
            case _:
                return None

    def _decorator(self, node: ast.expr) -> Decorator | None:
        made = self._names.value(node)
        function = made.func if isinstance(made, ast.Call) else made
        known = self._names.imported(function.id, POWERTOOLS) if isinstance(function, ast.Name) else None
        return Decorator(known, self._names.file.path, node.lineno) if known else None

    def _lists(self, given: ast.expr | None) -> Steps:
        if isinstance(given, ast.Dict):
            by_queue = {
                key.value: self._list(self._names.value(value))
                for key, value in zip(given.keys, given.values, strict=True)
                if isinstance(key, ast.Constant) and isinstance(key.value, str)
            }
            is_whole = len(by_queue) == len(given.keys)
            return {"default": DEFAULT_STEPS if is_whole else (), **by_queue}
        return {"default": self._list(given)}

    def _list(self, given: ast.expr | None) -> tuple[Step, ...]:
        match given:
            case None | ast.Constant(value=None) | ast.List(elts=[]) | ast.Tuple(elts=[]):
                return DEFAULT_STEPS
            case ast.List() | ast.Tuple():
                return tuple(self._step(self._names.value(each)) for each in given.elts)
            case _:
                return ()

    def _step(self, node: ast.expr | None) -> Step:
        if not isinstance(node, ast.Call):
            return UNKNOWN_STEP
        kind = self._names.name_in_tarry(node.func) or ""
        keywords = {str(each.arg): each.value for each in node.keywords}
        try:
            given = signature(BUILT_IN[kind]).bind_partial(*node.args, **keywords)
        except (KeyError, TypeError):  # one of the user's own; **options
            return UNKNOWN_STEP
        times = self._times(given.arguments.get("times")) if kind == "SendAgain" else None
        match self._names.value(given.arguments.get("queue")):
            case None | ast.Constant(value=None):
                return Step(kind, times=times)
            case ast.Constant(value=str(text)):
                return Step(kind, text, times)
            case _:
                return UNKNOWN_STEP

    def _times(self, node: ast.expr | None) -> int | None:
        """Return the ``times`` of a `SendAgain`; None if it is not known."""
        match self._names.value(node):
            case None:
                return 1
            case ast.Constant(value=int(number)):
                return number
            case _:
                return None


def _parsed(annotation: ast.expr) -> ast.expr:
    """Return an annotation that is written as text as an expression."""
    match annotation:
        case ast.Constant(value=str(text)):
            with suppress(SyntaxError):
                return ast.parse(text, mode="eval").body
    return annotation
