"""A function's consumer, found in its code without running it."""

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from tarry.decide.retry_policy import Backoff, Exponential, Fixed, Linear, Schedule, as_backoff
from tarry.decide.steps import EVERY_REASON, BuiltInStep
from tarry.errors import ConfigurationError
from tarry.tools.check.sources import ImportStatement, SourceFile, Sources, modules_named
from tarry.tools.template import TemplateFunction

KINDS: dict[str | None, Callable[..., Backoff]] = {
    each.__name__: each for each in (Exponential, Fixed, Linear, Schedule)
}
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
DECORATORS = frozenset({"consumer", "batch_consumer"})
MAKERS = DECORATORS | {"Consumer"}
"""The names of tarry that make a consumer."""
GENERICS = frozenset({"Message", "Batch"})
POWERTOOLS = "aws_lambda_powertools"
MAX_DEPTH = 10
"""The number of imports that are followed from the module of the handler to the one that defines it."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Settings = Mapping[str | None, ast.expr | None]
"""The keyword arguments of a call; under None, those that do not show: ``**settings``."""
NOT_SHOWN: Settings = {None: None}


BUILT_IN: Mapping[str, type[BuiltInStep]] = {kind.__name__: kind for kind in BuiltInStep.__subclasses__()}
"""The built-in failure steps by name. They tell what they do, so no rule lists them."""


class Step(NamedTuple):
    """A failure step. ``queue`` is the name, URL or ARN that it is given; None for its default.

    ``kind`` is the name of a built-in step; empty for one of the user's own, or whose queue is not known. ``times`` is
    that of `SendAgain`; None if it is not known.
    """

    kind: str
    queue: str | None = None
    times: int | None = None

    @property
    def leads_to(self) -> str:
        """The kind of its outcome; empty for one of the user's own."""
        return BUILT_IN[self.kind].leads_to if self.kind else ""

    @property
    def passes_on(self) -> bool:
        """Whether it certainly passes some failures on."""
        return bool(self.kind) and BUILT_IN[self.kind].handles != EVERY_REASON


UNKNOWN_STEP = Step("")
DEFAULT_STEPS = (Step("RetryInPlace"), Step("DeadLetter"))
DEFAULT_MAX_ATTEMPTS = 5
Steps = Mapping[str, tuple[Step, ...]]
"""The steps by queue name, with ``"default"`` for other queues. A list that cannot be read is empty."""


class Decorator(NamedTuple):
    """A decorator of Powertools, by its name there."""

    name: str
    path: Path
    line: int


class ConsumerCode(NamedTuple):
    """A consumer, as far as its code tells."""

    steps: Steps
    max_attempts: int | None = None
    """None if it is not certain."""
    model: tuple[Path, int] | None = None
    """The file and line of its model, if it certainly has one."""
    above: tuple[Decorator, ...] = ()
    """The decorators of Powertools above ``@consumer``."""
    backoff: Backoff | None = None
    """The backoff of its policy; None for the default."""
    is_backoff_known: bool = False
    has_default_attempts: bool = False
    """Whether the code leaves ``max_attempts`` at its default."""


class Import(NamedTuple):
    """The origin of an imported name; ``name`` is empty for a module."""

    module: str
    name: str


class Names:
    """The meanings of the names in a file, as far as they show without running it, and the consumers made of them."""

    def __init__(self, file: SourceFile) -> None:
        self.bound: dict[str, ast.AST | Import] = {}
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

    def _bindings(self, node: ast.stmt) -> Iterator[tuple[str, ast.AST | Import]]:
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
                    yield each.asname or top, Import(each.name if each.asname else top, "")
            case ast.ImportFrom():
                statement = ImportStatement(node.module or "", (), node.level, node.lineno)
                module = next(modules_named(statement, self._file), "")
                yield from ((each.asname or each.name, Import(module, each.name)) for each in node.names)

    def name_in_tarry(self, node: ast.AST) -> str | None:
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
            case Import(module, original) if module.partition(".")[0] == package:
                return original or None
            case _:
                return None

    def _value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the value of a name that is assigned once, or the expression itself."""
        return self._values.get(node.id, node) if isinstance(node, ast.Name) else node

    def _settings(self, keywords: Sequence[ast.keyword]) -> Settings:
        return {keyword.arg: self._value(keyword.value) for keyword in keywords}

    def consumer_among(self, decorators: Sequence[ast.expr], function: Function | None = None) -> ConsumerCode | None:
        """Return the consumer that one of these decorators makes of a function, the topmost first."""
        for number, each in enumerate(decorators):
            if (made := self._consumer(each, function)) is not None:
                above = (self._decorator(other) for other in decorators[:number])
                return made._replace(above=tuple(other for other in above if other is not None))
        return None

    def _consumer(self, node: ast.expr, function: Function | None) -> ConsumerCode | None:
        """Return what ``consumer``, ``consumer(...)`` or a partial of it makes; None for another expression."""
        made, keywords = (node.func, node.keywords) if isinstance(node, ast.Call) else (node, [])
        if self.name_in_tarry(made) not in DECORATORS:
            return None
        settings = self._settings(keywords)
        model = self._model(settings.get("model"), function)
        if None in settings:
            return ConsumerCode({"default": ()}, model=model)
        policy = self._policy(settings.get("policy"), settings)
        consumer = ConsumerCode(self._lists(settings.get("on_failure")), model=model)
        match policy.get("max_attempts"):
            case None if None not in policy:
                consumer = consumer._replace(max_attempts=DEFAULT_MAX_ATTEMPTS, has_default_attempts=True)
            case ast.Constant(value=int(number)):
                consumer = consumer._replace(max_attempts=number)
        match policy.get("backoff"):
            case _ if None in policy:
                return consumer
            case None | ast.Constant(value=None):
                return consumer._replace(is_backoff_known=True)
            case given:
                backoff = self._backoff(given)
                return consumer._replace(backoff=backoff, is_backoff_known=backoff is not None)

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

    def _policy(self, given: ast.expr | None, settings: Settings) -> Settings:
        """Return the settings of the retry policy: of the consumer, or of a `RetryPolicy` that is made beside it."""
        match given:
            case None | ast.Constant(value=None):
                return settings
            case ast.Call(func=function, args=[], keywords=keywords) if self.name_in_tarry(function) == "RetryPolicy":
                return self._settings(keywords)
            case _:
                return NOT_SHOWN

    def _backoff(self, node: ast.expr) -> Backoff | None:
        """Return the backoff that an expression makes; None if that is not certain."""
        make: Callable[..., Backoff] | None
        match node:
            case ast.Call(func=ast.Attribute(value=maker, attr="rocketmq"), args=[] as arguments, keywords=keywords):
                make = Schedule.rocketmq if self.name_in_tarry(maker) == "Schedule" else None
            case ast.Call(func=function, args=arguments, keywords=keywords):
                make = KINDS.get(self.name_in_tarry(function))
            case _:
                return None
        if make is None or any(each.arg is None for each in keywords):
            return None
        try:
            given = {str(each.arg): self._constant(each.value) for each in keywords}
            return as_backoff(make(*map(self._constant, arguments), **given))
        except (ConfigurationError, ArithmeticError, RecursionError, TypeError, ValueError):
            return None  # not constant, or the consumer itself cannot be made of it

    def _constant(self, node: ast.expr) -> Any:
        """Return the value of an expression of constants. Raises `ValueError` for any other expression."""
        match self._value(node):
            case ast.Constant(value=found):
                return found
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._constant(each) for each in elements]
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
                return OPERATORS[type(sign)](self._constant(left), self._constant(right))
            case _:
                raise ValueError

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
            case ast.List(elts=steps) | ast.Tuple(elts=steps):
                return tuple(self._step(self._value(each)) for each in steps)
            case _:
                return ()

    def _step(self, node: ast.expr | None) -> Step:
        if not isinstance(node, ast.Call):
            return UNKNOWN_STEP
        kind = self.name_in_tarry(node.func) or ""
        keywords = {str(each.arg): each.value for each in node.keywords}
        try:
            given = signature(BUILT_IN[kind]).bind_partial(*node.args, **keywords).arguments
        except (KeyError, TypeError):  # one of the user's own; **options
            return UNKNOWN_STEP
        times: Any = None
        match self._value(given.get("times")):
            case None if kind == "SendAgain":
                times = 1
            case ast.Constant(value=int(times)):
                pass
        match self._value(given.get("queue")):
            case None | ast.Constant(value=None):
                return Step(kind, times=times)
            case ast.Constant(value=str(text)):
                return Step(kind, text, times)
            case _:
                return UNKNOWN_STEP


def _top_level(body: Sequence[ast.stmt], *, is_certain: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements of a module, those under ``if`` and ``try`` too, and whether each is certain to run."""
    for node in body:
        yield node, is_certain
        if isinstance(node, ast.If | ast.Try):
            below = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            yield from _top_level(below, is_certain=False)


def _parsed(annotation: ast.expr) -> ast.expr:
    """Return an annotation that is written as text as an expression."""
    match annotation:
        case ast.Constant(value=str(text)):
            with suppress(SyntaxError):
                return ast.parse(text, mode="eval").body
    return annotation


def is_consumer(function: TemplateFunction) -> bool:
    """Return whether the handler of a function is a consumer of tarry, or calls one, as far as its source tells."""
    if function.code is None or not function.handler:
        return False
    module, _, name = function.handler.rpartition(".")
    roots = [function.code, *(each for layer in function.layers for each in (layer / "python", layer))]
    return ConsumerFinder([Sources(root) for root in roots]).is_handler(module.replace("/", "."), name)


class ConsumerFinder:
    """A finder of consumers in the files of some places, the first that has a module."""

    def __init__(self, places: Sequence[Sources]) -> None:
        self._places = places
        self._names: dict[str, Names | None] = {}

    def consumer_of(self, module: str, name: str, depth: int = 0) -> ConsumerCode | None:
        """Return the consumer that a name is; None if it is not certain that it is one of tarry."""
        names = self._names_of(module, depth)
        if names is None or name not in names.certain:
            return None
        match names.bound[name]:
            case Import(origin, original):
                return self.consumer_of(origin, original, depth + 1)
            case ast.FunctionDef() | ast.AsyncFunctionDef() as function:
                return names.consumer_among(function.decorator_list, function)
            case ast.Name(id=other) if other in names.bound:
                return self.consumer_of(module, other, depth + 1)
            case value:
                made = names.consumer_among(_calls_in(value))
                return made and made._replace(above=())  # calls, whose order is not that of decorators

    def is_handler(
        self, module: str, name: str, depth: int = 0, seen: frozenset[str] = frozenset(), *, may_call: bool = True
    ) -> bool:
        """Return whether a name is decorated as a consumer, assigned from one, or if ``may_call`` calls one."""
        names = self._names_of(module, depth)
        definition = names.bound.get(name) if names else None
        if names is None or definition is None or name in seen:
            return False
        if isinstance(definition, Import):
            return self.is_handler(*definition, depth + 1, may_call=may_call)
        makers = definition.decorator_list if isinstance(definition, Function) else [definition]
        nodes = [node for maker in makers for node in ast.walk(maker)]
        used = nodes + [each.func for each in (_calls_in(definition) if may_call else ())]
        return any(names.name_in_tarry(node) in MAKERS for node in nodes) or any(
            self.is_handler(module, node.id, depth, seen | {name}, may_call=False)
            for node in used
            if isinstance(node, ast.Name)
        )

    def _names_of(self, module: str, depth: int) -> Names | None:
        if depth > MAX_DEPTH:
            return None
        if module not in self._names:
            files = (place.file_of(module) for place in self._places)
            file = next((each for each in files if each is not None), None)
            self._names[module] = None if file is None else Names(file)
        return self._names[module]


def _calls_in(node: ast.AST) -> list[ast.Call]:
    return [each for each in ast.walk(node) if isinstance(each, ast.Call)]
