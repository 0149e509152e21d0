"""A function's consumer, read from its code without running it: whether it has one, and with which settings."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tarry.lint.backoffs import backoff_of
from tarry.lint.imports import ImportStatement
from tarry.lint.sources import SourceFile, Sources, modules_named
from tarry.policy.backoff import Backoff
from tarry.template import TemplateFunction

QUEUE_POSITION = {"DeadLetter": 0, "SendAgain": 3}
"""The position of the argument ``queue`` of each step that sends messages."""
MAX_DEPTH = 10
"""The number of imports that are followed from the module of the handler to the one that defines it."""
DECORATORS = frozenset({"consumer", "batch_consumer"})
MAKERS = DECORATORS | {"Consumer"}
"""The names of tarry that make a consumer."""
GENERICS = frozenset({"Message", "Batch"})
POWERTOOLS = "aws_lambda_powertools"


class Step(NamedTuple):
    """A failure step. ``queue`` is the name, URL or ARN that it is given; None for its default.

    ``kind`` is the name of a built-in step; empty for one of the user's own, or whose queue is not known. ``times`` is
    that of `SendAgain`; None if it is not known.
    """

    kind: str
    queue: str | None = None
    times: int | None = None


UNKNOWN_STEP = Step("")


DEFAULT_STEPS = (Step("RetryInPlace"), Step("DeadLetter"))
DEFAULT_MAX_ATTEMPTS = 5

Steps = Mapping[str, tuple[Step, ...]]
"""The steps by queue name, with ``"default"`` for other queues. A list that cannot be read is empty."""


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
    backoff: Backoff | None = None
    """The backoff of its policy; None for the default."""
    is_backoff_known: bool = False

    def steps_for(self, queue: str) -> tuple[Step, ...]:
        """Return the steps for messages from a queue."""
        return self.steps.get(queue, self.steps["default"])


Function = ast.FunctionDef | ast.AsyncFunctionDef


def consumer_of(sources: Sources, module: str, name: str) -> ConsumerCode | None:
    """Return the consumer that a handler is; None if it is not certain that it is a consumer of tarry."""
    return _Reader([sources]).consumer_of(module, name)


def is_consumer(function: TemplateFunction) -> bool:
    """Return whether the handler of a function is a consumer of tarry, or calls one, as far as its source tells."""
    if function.code is None or not function.handler:
        return False
    module, _, name = function.handler.rpartition(".")
    roots = [function.code, *(each for layer in function.layers for each in (layer / "python", layer))]
    return _Reader([Sources(root) for root in roots]).is_handler(module.replace("/", "."), name)


class _Reader:
    """A reader of the files in some places, the first that has a module."""

    def __init__(self, places: Sequence[Sources]) -> None:
        self._places = places
        self._codes: dict[str, _Code | None] = {}

    def consumer_of(self, module: str, name: str, depth: int = 0) -> ConsumerCode | None:
        """Return the consumer that a name is; None if it is not certain that it is one."""
        code = self._code(module, depth)
        if code is None or name not in code.certain:
            return None
        match code.bound[name]:
            case _Import(origin, original):
                return self.consumer_of(origin, original, depth + 1)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as function:
                return code.consumer_among(function.decorator_list, function)
            case ast.Name(id=other) if other in code.bound:
                return self.consumer_of(module, other, depth + 1)
            case value:
                calls = [each for each in ast.walk(value) if isinstance(each, ast.Call)]
                made = code.consumer_among(calls)
                return made and made._replace(above=())  # calls, whose order is not that of decorators

    def is_handler(self, module: str, name: str, depth: int = 0) -> bool:
        """Return whether a name is a consumer, or a function that calls one."""
        code = self._code(module, depth)
        match code.bound.get(name) if code else None:
            case None:
                return False
            case _Import(origin, original):
                return self.is_handler(origin, original, depth + 1)
            case definition:
                called = [each.func for each in ast.walk(definition) if isinstance(each, ast.Call)]
                names = [name, *(each.id for each in called if isinstance(each, ast.Name))]
                return any(self._is_consumer(module, each, depth) for each in names)

    def _is_consumer(self, module: str, name: str, depth: int, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether a name is a consumer of tarry: decorated as one, or assigned from one."""
        code = self._code(module, depth)
        if code is None or name in seen:
            return False
        match code.bound.get(name):
            case None:
                return False
            case _Import(origin, original):
                return self._is_consumer(origin, original, depth + 1)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as function:
                parts: Sequence[ast.AST] = function.decorator_list
            case value:
                parts = [value]
        nodes = [node for part in parts for node in ast.walk(part)]
        return any(
            isinstance(node, ast.Name | ast.Attribute)
            and (
                code.name_in_tarry(node) in MAKERS
                or (isinstance(node, ast.Name) and self._is_consumer(module, node.id, depth, seen | {name}))
            )
            for node in nodes
        )

    def _code(self, module: str, depth: int) -> "_Code | None":
        if depth > MAX_DEPTH:
            return None
        if module not in self._codes:
            files = (place.file_of(module) for place in self._places)
            file = next((each for each in files if each is not None), None)
            self._codes[module] = None if file is None else _Code(file)
        return self._codes[module]


class _Import(NamedTuple):
    """The origin of an imported name; ``name`` is empty for a module."""

    module: str
    name: str


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
        self.bound: dict[str, ast.AST | _Import] = {}
        """The definition, value or import of each name at the top level; the last one."""
        self.certain: set[str] = set()
        """The names whose last definition is under no condition."""
        self._file = file
        for node, is_certain in _top_level(file.tree.body):
            for name, what in self._bindings(node):
                self.bound[name] = what
                (self.certain.add if is_certain else self.certain.discard)(name)
        assigned = Counter(
            node.id for node in ast.walk(file.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        self._values = {
            name: what
            for name, what in self.bound.items()
            if isinstance(what, ast.expr) and name in self.certain and assigned[name] == 1
        }
        """The values of names that are assigned once."""

    def _bindings(self, node: ast.stmt) -> Iterator[tuple[str, ast.AST | _Import]]:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, node
            case ast.Assign(targets=targets, value=value):
                yield from ((each.id, value) for each in targets if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield name, value
            case ast.Import():
                for each in node.names:
                    top = each.name.partition(".")[0]
                    yield each.asname or top, _Import(each.name if each.asname else top, "")
            case ast.ImportFrom():
                statement = ImportStatement(node.module or "", (), node.level, node.lineno)
                module = next(modules_named(statement, self._file), "")
                yield from ((each.asname or each.name, _Import(module, each.name)) for each in node.names)

    def name_in_tarry(self, node: ast.expr) -> str | None:
        """Return the name in tarry for which an expression stands."""
        match node:
            case ast.Name(id=name):
                return self._imported(name, "tarry")
            case ast.Attribute(value=ast.Name(id=module), attr=name) if self.bound.get(module) == ("tarry", ""):
                return name
            case _:
                return None

    def _imported(self, name: str, package: str) -> str | None:
        """Return the name in a package that a name is imported from."""
        match self.bound.get(name):
            case _Import(module, original) if module.partition(".")[0] == package:
                return original or None
            case _:
                return None

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
        if self.name_in_tarry(call.func if call else node) not in DECORATORS:
            return None
        if call is None:
            attempts = Attempts(DEFAULT_MAX_ATTEMPTS, is_default=True)
            model = self._model(None, function)
            return ConsumerCode({"default": DEFAULT_STEPS}, attempts, model, is_backoff_known=True)
        settings = {keyword.arg: self._value(keyword.value) for keyword in call.keywords}
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
                backoff = backoff_of(node, self.name_in_tarry, self._value)
                return made._replace(backoff=backoff, is_backoff_known=backoff is not None)

    def _model(self, value: ast.expr | None, function: Function | None) -> tuple[Path, int] | None:
        """Return the place of the model: the setting ``model``, or ``Message[Order]`` in an annotation."""
        if value is not None and not isinstance(value, ast.Constant):
            return self._file.path, value.lineno
        arguments = [*function.args.posonlyargs, *function.args.args] if function else []
        for annotation in filter(None, (each.annotation for each in arguments[:1])):
            for node in ast.walk(_parsed(annotation)):
                match node:
                    case ast.Subscript(value=generic, slice=model) if self.name_in_tarry(generic) in GENERICS:
                        is_open = isinstance(model, ast.Name | ast.Attribute) and ast.unparse(model).endswith("Any")
                        place = self._file.path, annotation.lineno
                        return None if is_open or ast.unparse(model) == "object" else place
        return None

    def _policy(self, settings: Mapping[str | None, ast.expr | None]) -> Mapping[str | None, ast.expr | None] | None:
        """Return the settings of the retry policy; None if it is made elsewhere."""
        match settings.get("policy"):
            case None | ast.Constant(value=None):
                return settings
            case ast.Call(func=function, args=[], keywords=keywords) if self.name_in_tarry(function) == "RetryPolicy":
                return {keyword.arg: self._value(keyword.value) for keyword in keywords}
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
        made = self._value(node)
        function = made.func if isinstance(made, ast.Call) else made
        known = self._imported(function.id, POWERTOOLS) if isinstance(function, ast.Name) else None
        return Decorator(known, self._file.path, node.lineno) if known else None

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
                return tuple(self._step(self._value(each)) for each in given.elts)
            case _:
                return ()

    def _step(self, node: ast.expr | None) -> Step:
        if not isinstance(node, ast.Call) or (kind := self.name_in_tarry(node.func)) is None:
            return UNKNOWN_STEP
        keywords = {each.arg: each.value for each in node.keywords}
        position = QUEUE_POSITION.get(kind, len(node.args))
        queue = (*node.args[position : position + 1], keywords.get("queue"))[0]
        times = self._times(node, keywords) if kind == "SendAgain" else None
        match self._value(queue):
            case None | ast.Constant(value=None) if None not in keywords:
                return Step(kind, times=times)
            case ast.Constant(value=str(text)):
                return Step(kind, text, times)
            case _:
                return UNKNOWN_STEP

    def _times(self, node: ast.Call, keywords: Mapping[str | None, ast.expr]) -> int | None:
        """Return the ``times`` of a `SendAgain`, its second argument; None if it is not known."""
        match self._value((*node.args[1:2], keywords.get("times"))[0]):
            case None:
                return 1
            case ast.Constant(value=int(number)):
                return number
            case _:
                return None

    def _value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the value of a name that is assigned once, or the expression itself."""
        return self._values.get(node.id, node) if isinstance(node, ast.Name) else node


def _top_level(body: Sequence[ast.stmt], *, is_certain: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements of a module, those under ``if`` and ``try`` too, and whether each is certain to run."""
    for node in body:
        yield node, is_certain
        if isinstance(node, ast.If | ast.Try):
            below = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            yield from _top_level(below, is_certain=False)
