"""A function's consumer, read from its code without running it: its failure steps, attempts, model and decorators."""

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tarry.lint.imports import imports_in
from tarry.lint.sources import SourceFile, Sources, modules_named

QUEUE_POSITION = {"DeadLetter": 0, "SendAgain": 3}
"""The position of the argument ``queue`` of each step that sends messages."""
MAX_DEPTH = 10
POWERTOOLS = "aws_lambda_powertools"


class Step(NamedTuple):
    """A built-in failure step. ``queue`` is the name, URL or ARN that it is given; None for its default."""

    kind: str
    queue: str | None = None


DEFAULT_STEPS = (Step("RetryInPlace"), Step("DeadLetter"))
DEFAULT_MAX_ATTEMPTS = 5

Steps = Mapping[str, tuple[Step, ...]]
"""The known steps by queue name, with ``"default"`` for other queues. Steps that cannot be read are left out."""


class Attempts(NamedTuple):
    """The ``max_attempts`` of a consumer, and whether the code leaves it at its default."""

    number: int
    is_default: bool


class Decorator(NamedTuple):
    """A decorator of Powertools, by its name there."""

    name: str
    path: Path
    line: int


class ConsumerCode(NamedTuple):
    """A consumer, as far as its code tells."""

    steps: Steps
    attempts: Attempts | None = None
    """None if it is not certain."""
    model: tuple[Path, int] | None = None
    """The file and line of its model, if it certainly has one."""
    above: tuple[Decorator, ...] = ()
    """The decorators of Powertools above ``@consumer``."""

    def steps_for(self, queue: str) -> tuple[Step, ...]:
        """Return the steps for messages from a queue."""
        return self.steps.get(queue, self.steps["default"])


Function = ast.FunctionDef | ast.AsyncFunctionDef


def consumer_of(sources: Sources, module: str, name: str) -> ConsumerCode | None:
    """Return the consumer that a handler is; None if it is not certain that it is a consumer of tarry."""
    return _Reader(sources).consumer_of(module, name)


class _Reader:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def consumer_of(self, module: str, name: str, depth: int = 0) -> ConsumerCode | None:
        file = self._sources.file_of(module)
        if file is None or depth > MAX_DEPTH:
            return None
        code = _Code(file)
        found: ConsumerCode | None = None
        for node in file.tree.body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                    found = code.consumer_among(node.decorator_list, node)
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=other)) if target == name:
                    found = self.consumer_of(module, other, depth + 1)
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)]
                    made = code.consumer_among(calls)
                    found = made and made._replace(above=())  # calls, whose order is not that of decorators
                case ast.ImportFrom():
                    for each in node.names:
                        if (each.asname or each.name) == name:
                            found = self._imported(node, each.name, file, depth)
        return found

    def _imported(self, node: ast.ImportFrom, name: str, file: SourceFile, depth: int) -> ConsumerCode | None:
        [statement] = imports_in(ast.Module([node], []))
        modules = modules_named(statement, file)
        return self.consumer_of(next(modules, ""), name, depth + 1)


def _parsed(annotation: ast.expr) -> ast.expr:
    """Return an annotation that is written as text as an expression."""
    match annotation:
        case ast.Constant(value=str(text)):
            with suppress(SyntaxError):
                return ast.parse(text, mode="eval").body
    return annotation


class _Code:
    """A file: what its names mean, as far as this shows without running it."""

    def __init__(self, file: SourceFile) -> None:
        self._of_tarry: dict[str, str] = {}
        """The names of tarry by the name in the file; empty for the module itself."""
        self._of_powertools: dict[str, str] = {}
        """The names of Powertools by the name in the file."""
        self._values: dict[str, ast.expr] = {}
        """The values of names that are assigned once."""
        self._path = file.path
        assigned = Counter[str]()
        for node in ast.walk(file.tree):
            match node:
                case ast.ImportFrom(module="tarry", level=0):
                    self._of_tarry |= {each.asname or each.name: each.name for each in node.names}
                case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] == POWERTOOLS:
                    self._of_powertools |= {each.asname or each.name: each.name for each in node.names}
                case ast.Import():
                    self._of_tarry |= {each.asname or each.name: "" for each in node.names if each.name == "tarry"}
                case ast.Name(id=name, ctx=ast.Store()):
                    assigned[name] += 1
        for node in file.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if assigned[name] == 1:
                    self._values[name] = value

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
        if self._name(call.func if call else node) not in {"consumer", "batch_consumer"}:
            return None
        if call is None:
            attempts = Attempts(DEFAULT_MAX_ATTEMPTS, is_default=True)
            return ConsumerCode({"default": DEFAULT_STEPS}, attempts, self._model(None, function))
        settings = {keyword.arg: self._value(keyword.value) for keyword in call.keywords}
        model = self._model(settings.get("model"), function)
        if None in settings:  # **settings
            return ConsumerCode({"default": ()}, model=model)
        return ConsumerCode(self._lists(settings.get("on_failure")), self._attempts(settings), model)

    def _model(self, value: ast.expr | None, function: Function | None) -> tuple[Path, int] | None:
        """Return the place of the model: the setting ``model``, or ``Message[Order]`` in an annotation."""
        if value is not None and not isinstance(value, ast.Constant):
            return self._path, value.lineno
        arguments = [*function.args.posonlyargs, *function.args.args] if function else []
        for annotation in filter(None, (each.annotation for each in arguments[:1])):
            for node in ast.walk(_parsed(annotation)):
                match node:
                    case ast.Subscript(value=generic, slice=model) if self._name(generic) in {"Message", "Batch"}:
                        is_open = isinstance(model, ast.Name | ast.Attribute) and ast.unparse(model).endswith("Any")
                        return None if is_open or ast.unparse(model) == "object" else (self._path, annotation.lineno)
        return None

    def _attempts(self, settings: Mapping[str | None, ast.expr | None]) -> Attempts | None:
        match settings.get("policy"):
            case None | ast.Constant(value=None):
                pass
            case ast.Call(func=function, args=[], keywords=keywords) if self._name(function) == "RetryPolicy":
                settings = {keyword.arg: self._value(keyword.value) for keyword in keywords}
            case _:
                return None
        match settings.get("max_attempts"):
            case None if None not in settings:  # no **settings
                return Attempts(DEFAULT_MAX_ATTEMPTS, is_default=True)
            case ast.Constant(value=int(number)):
                return Attempts(number, is_default=False)
            case _:
                return None

    def _decorator(self, node: ast.expr) -> Decorator | None:
        made = self._value(node)
        function = made.func if isinstance(made, ast.Call) else made
        known = self._of_powertools.get(function.id) if isinstance(function, ast.Name) else None
        return Decorator(known, self._path, node.lineno) if known else None

    def _lists(self, given: ast.expr | None) -> Steps:
        if isinstance(given, ast.Dict):
            by_queue = {
                key.value: self._list(self._value(value))
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
                steps = (self._step(self._value(each)) for each in given.elts)
                return tuple(each for each in steps if each is not None)
            case _:
                return ()

    def _step(self, node: ast.expr | None) -> Step | None:
        if not isinstance(node, ast.Call) or (kind := self._name(node.func)) is None:
            return None
        position = QUEUE_POSITION.get(kind, len(node.args))
        given = [*node.args[position : position + 1], *(each.value for each in node.keywords if each.arg == "queue")]
        match self._value(given[0]) if given else None:
            case None | ast.Constant(value=None):
                return Step(kind)
            case ast.Constant(value=str(queue)):
                return Step(kind, queue)
            case _:
                return None

    def _value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the value of a name that is assigned once, or the expression itself."""
        return self._values.get(node.id, node) if isinstance(node, ast.Name) else node

    def _name(self, node: ast.expr) -> str | None:
        """Return the name in tarry for which an expression stands."""
        match node:
            case ast.Name(id=name):
                return self._of_tarry.get(name) or None
            case ast.Attribute(value=ast.Name(id=module), attr=name) if self._of_tarry.get(module) == "":
                return name
            case _:
                return None
