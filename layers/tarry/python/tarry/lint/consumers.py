"""The consumer of a function, read from its code without running it: its failure steps, and whether it has a model."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tarry.lint.imports import imports_in
from tarry.lint.sources import SourceFile, Sources, modules_named

QUEUE_POSITION = {"DeadLetter": 0, "SendAgain": 3}
"""The position of the argument ``queue`` of each step that sends messages."""
MAX_DEPTH = 10


class Step(NamedTuple):
    """A built-in failure step. ``queue`` is the name, URL or ARN that it is given; None for its default."""

    kind: str
    queue: str | None = None


DEFAULT_STEPS = (Step("RetryInPlace"), Step("DeadLetter"))

Steps = Mapping[str, tuple[Step, ...]]
"""The known steps by queue name, with ``"default"`` for other queues. Steps that cannot be read are left out."""


def steps_of(sources: Sources, module: str, name: str) -> Steps | None:
    """Return the failure steps of a handler; None if it is not certain that the handler is a consumer of tarry."""
    found = _Reader(sources).consumer(module, name)
    return None if found is None else found.steps


def model_of(sources: Sources, module: str, name: str) -> tuple[Path, int] | None:
    """Return the file and line of the consumer that is a handler, if it certainly has a model."""
    found = _Reader(sources).consumer(module, name)
    return None if found is None else found.model


class _Consumer(NamedTuple):
    """The failure steps of a consumer, and the file and line of its model."""

    steps: Steps
    model: tuple[Path, int] | None


class _Reader:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def consumer(self, module: str, name: str, depth: int = 0) -> _Consumer | None:
        file = self._sources.file_of(module)
        if file is None or depth > MAX_DEPTH:
            return None
        code = _Code(file)
        found: _Consumer | None = None
        for node in file.tree.body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
                    found = _first(code.consumer_in(each, node) for each in node.decorator_list)
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=other)) if target == name:
                    found = self.consumer(module, other, depth + 1)
                case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                    found = _first(code.consumer_in(each) for each in ast.walk(value) if isinstance(each, ast.Call))
                case ast.ImportFrom():
                    for each in node.names:
                        if (each.asname or each.name) == name:
                            found = self._imported(node, each.name, file, depth)
        return found

    def _imported(self, node: ast.ImportFrom, name: str, file: SourceFile, depth: int) -> _Consumer | None:
        [statement] = imports_in(ast.Module([node], []))
        modules = modules_named(statement, file)
        return self.consumer(next(modules, ""), name, depth + 1)


def _first(found: Iterator[_Consumer | None]) -> _Consumer | None:
    return next((each for each in found if each is not None), None)


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
        self._path = file.path
        self._of_tarry: dict[str, str] = {}
        """The names of tarry by the name in the file; empty for the module itself."""
        self._values: dict[str, ast.expr] = {}
        """The values of names that are assigned once."""
        assigned = Counter[str]()
        for node in ast.walk(file.tree):
            match node:
                case ast.ImportFrom(module="tarry", level=0):
                    self._of_tarry |= {each.asname or each.name: each.name for each in node.names}
                case ast.Import():
                    self._of_tarry |= {each.asname or each.name: "" for each in node.names if each.name == "tarry"}
                case ast.Name(id=name, ctx=ast.Store()):
                    assigned[name] += 1
        for node in file.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if assigned[name] == 1:
                    self._values[name] = value

    def consumer_in(
        self, node: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef | None = None
    ) -> _Consumer | None:
        """Return what ``consumer``, ``consumer(...)`` or a partial of it sets; None for another expression.

        ``function`` is the function that the expression decorates.
        """
        call = node if isinstance(node, ast.Call) else None
        if self._name(call.func if call else node) not in {"consumer", "batch_consumer"}:
            return None
        if call is None:
            return _Consumer({"default": DEFAULT_STEPS}, self._model(None, function))
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        model = self._model(given.get("model"), function)
        if None in given:  # **settings
            return _Consumer({"default": ()}, model)
        return _Consumer(self._lists(self._value(given.get("on_failure"))), model)

    def _model(
        self, given: ast.expr | None, function: ast.FunctionDef | ast.AsyncFunctionDef | None
    ) -> tuple[Path, int] | None:
        """Return the place of the model: the setting ``model``, or ``Message[Order]`` in an annotation."""
        value = self._value(given)
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
