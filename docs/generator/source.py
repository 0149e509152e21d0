"""Log events and errors of the package, collected from its syntax trees with their texts as templates."""

import ast
import builtins
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import tarry

PACKAGE = Path(tarry.__file__).parent
EVENT_CALLS = {"problem": 0, "once": 1, "Notice": 0}
"""Calls that write a log line, and the position of the event's name; its text is the next argument."""
TEXT_CALLS = {"refuse": 0, "note": 0, "_note": 0, "failed": 1, "skipped": 1}
"""Functions of the command that show a text, and the position of the text."""
MOST_VARIANTS = 12
PLAIN = (str, int, float, Path)
LEVELS = {10: "DEBUG", 20: "INFO", 30: "WARNING", 40: "ERROR"}


@dataclass(frozen=True)
class Text:
    """A text that a function writes or raises, as a template: ``message {id} cannot be extended``."""

    name: str
    """The event, the class of the error, or the function of the command that shows it."""
    place: str
    """The function, as ``module.Class.function``."""
    template: str
    level: str = ""
    fields: frozenset[str] = frozenset()
    """Further fields of a log line."""
    about: str = "message"
    """Of a log line: ``message`` if it names one, else ``invocation``."""

    @property
    def key(self) -> str:
        return f"{self.name} {self.place}"


@dataclass
class Scope:
    """The names of a function: its parameters, and what they and its variables are set to."""

    module: "Module"
    qualified_name: str = ""
    parameters: tuple[str, ...] = ()
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    given: dict[str, list[str]] = field(default_factory=dict)
    """The templates of parameters whose value is known from a call."""
    statements: list[ast.stmt] = field(default_factory=list)

    def values_at(self, node: ast.Name) -> list[ast.expr]:
        """The expressions that a variable may have been set to where it is read."""
        known = self.values.get(node.id, [])
        before = sorted((each for each in known if each.lineno <= node.lineno), key=lambda each: each.lineno)
        column = self._column(node.lineno)
        for index in range(len(before) - 1, -1, -1):
            if self._column(before[index].lineno) <= column:  # it is set here whatever came before
                return before[index:]
        return before or known

    def _column(self, line: int) -> int:
        """How far the statement of a line is indented."""
        around = (each for each in self.statements if each.lineno <= line <= (each.end_lineno or 0))
        return max((each.col_offset for each in around), default=0)


class Module:
    """One file of the package."""

    def __init__(self, path: Path) -> None:
        self.path = path
        relative = path.relative_to(PACKAGE).with_suffix("")
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        self._module = ".".join(("tarry", *parts))
        self.name = ".".join(parts).removeprefix("tools.")
        self.tree = ast.parse(path.read_text("utf-8"))

    @cached_property
    def namespace(self) -> ModuleType:
        return importlib.import_module(self._module)

    def imports(self, name: str, module: "Module") -> bool:
        """Whether a name of another module is imported here, at the top or in a function."""
        return (module.namespace.__name__, name) in self._imported

    @cached_property
    def _imported(self) -> set[tuple[str | None, str]]:
        """Each imported name with its module."""
        imports = (each for each in ast.walk(self.tree) if isinstance(each, ast.ImportFrom))
        return {(each.module, alias.name) for each in imports for alias in each.names}

    @cached_property
    def functions(self) -> list[tuple[Scope, ast.AST]]:
        """Each function, and the module itself, with the names that it sees."""
        return [(Scope(self), self.tree), *self._functions(self.tree, "")]

    def _functions(self, node: ast.AST, prefix: str) -> Iterator[tuple[Scope, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                name = f"{prefix}{child.name}"
                yield scope_of(self, name, child), child
                yield from self._functions(child, f"{name}.")
            elif not isinstance(child, ast.expr):  # which has no functions but lambdas
                yield from self._functions(
                    child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
                )


def scope_of(module: Module, name: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Scope:
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    values: dict[str, list[ast.expr]] = {}
    nodes = [*ast.walk(function)]
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for variable, value in _pairs(target, node.value):
                    values.setdefault(variable, []).append(value)
        elif isinstance(node, (ast.NamedExpr, ast.AnnAssign)) and isinstance(node.target, ast.Name) and node.value:
            values.setdefault(node.target.id, []).append(node.value)
        elif isinstance(node, ast.For):
            for each in ast.walk(node.target):
                if isinstance(each, ast.Name):
                    values.setdefault(each.id, [])
    statements = [node for node in nodes if isinstance(node, ast.stmt) and node is not function]
    return Scope(
        module, name, tuple(each.arg for each in parameters if each.arg != "self"), values, statements=statements
    )


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, its in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, its)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions within it, in the order of the source."""
    todo = [*ast.iter_child_nodes(function)][::-1]
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node
            todo += [*ast.iter_child_nodes(node)][::-1]


class Source:
    """The source of the package: its log events, errors, and texts of the command."""

    def __init__(self) -> None:
        self.modules = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
        self._by_name = {module.namespace.__name__: module for module in self.modules}

    # what is collected

    def events(self) -> list[Text]:
        """Return the log lines; those of state changes are in `tarry.observe.logs`."""
        calls, found = dict(EVENT_CALLS), dict[Text, None]()
        for _ in range(3):  # a function that passes the event's name on writes a log line too
            for scope, node in self._calls:
                name = called(node)
                if name not in calls or len(node.args) <= calls[name]:
                    continue
                event = node.args[calls[name]]
                if isinstance(event, ast.Constant) and isinstance(event.value, str):
                    found |= dict.fromkeys(self._lines(event.value, name, node, scope, calls[name] + 1))
                elif isinstance(event, ast.Name) and event.id in scope.parameters and name != "problem":
                    calls.setdefault(scope.qualified_name.rpartition(".")[2], scope.parameters.index(event.id))
        return list(found)

    def errors(self) -> list[Text]:
        """Return the errors that the package raises, each text once."""
        found = dict[Text, None]()
        for scope, node in self._calls:
            kind = self._class(node.func, scope)
            if kind is not None and issubclass(kind, BaseException):
                place = _place(scope)
                templates = self._error_texts(kind, node, scope)
                found |= dict.fromkeys(Text(kind.__name__, place, template) for template in templates)
        return list(found)

    def shown(self) -> list[Text]:
        """Return the texts that the command shows itself."""
        found = dict[Text, None]()
        for scope, node in self._calls:
            name = called(node)
            if name in TEXT_CALLS and scope.module.name.partition(".")[0] in {"cli", "local", "failed"}:
                position = TEXT_CALLS[name]
                if len(node.args) > position:
                    templates = self.templates(node.args[position], scope)
                    found |= dict.fromkeys(Text(name.strip("_"), _place(scope), each) for each in templates if each)
        return list(found)

    @cached_property
    def _calls(self) -> list[tuple[Scope, ast.Call]]:
        return [
            (scope, node)
            for module in self.modules
            for scope, function in module.functions
            for node in own_nodes(function)
            if isinstance(node, ast.Call)
        ]

    def _lines(self, event: str, name: str, node: ast.Call, scope: Scope, position: int) -> Iterator[Text]:
        keywords = {each.arg: each.value for each in node.keywords if each.arg}
        positional = {"problem": ("delivery",), "Notice": ("error", "level", "more")}.get(name, ())
        keywords |= dict(zip(positional, node.args[position + 1 :], strict=False))
        level = self._value(keywords["level"], scope) if "level" in keywords else 30 if name == "once" else 40
        if name not in EVENT_CALLS:
            level = {"shown_in_log": 30}.get(name, 40)
        fields = {each for each in keywords if each not in {"delivery", "level", "more", "text"}}
        if name == "shown_in_log":
            fields.add("record")
        is_of_invocation = name == "once" or (name == "problem" and "delivery" not in keywords)
        texts = self.templates(node.args[position], scope) if len(node.args) > position else [""]
        for text in texts:
            about = "invocation" if is_of_invocation else "message"
            yield Text(event, _place(scope), text, LEVELS[level], frozenset(fields), about)

    def _error_texts(self, kind: type, node: ast.Call, scope: Scope) -> list[str]:
        own = kind.__dict__.get("__init__")
        module = self._by_name.get(getattr(own, "__module__", ""))
        if module is None or own is None:
            return self.templates(node.args[0], scope) if node.args else [""]
        function = next(
            each for other, each in module.functions
            if isinstance(each, ast.FunctionDef) and other.qualified_name == own.__qualname__
        )  # fmt: skip
        inner = scope_of(module, own.__qualname__, function)
        names = [each.arg for each in function.args.args][1:]
        given = dict(zip(names, node.args, strict=False)) | {each.arg: each.value for each in node.keywords if each.arg}
        inner.given = {name: self.templates(value, scope) for name, value in given.items()}
        text = next(
            each.args[0] for each in own_nodes(function)
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "super().__init__" and each.args
        )  # fmt: skip
        return self.templates(text, inner)

    # templates

    def templates(self, node: ast.expr, scope: Scope, depth: int = 0) -> list[str]:
        """Return the texts that an expression may have, with ``{name}`` for values."""
        if depth > 6:
            return [f"{{{label(node)}}}"]
        found = list(dict.fromkeys(self._templates(node, scope, depth + 1)))
        return found[:MOST_VARIANTS]

    def _templates(self, node: ast.expr, scope: Scope, depth: int) -> list[str]:
        if isinstance(node, ast.Constant):
            return [str(node.value)]
        if isinstance(node, ast.JoinedStr):
            parts = [self.templates(value, scope, depth) for value in node.values]
            return ["".join(each) for each in product(*parts)]
        if isinstance(node, ast.FormattedValue):
            return self._formatted(node, scope, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and holds_text(node):
            sides = [self.templates(side, scope, depth) for side in (node.left, node.right)]
            return ["".join(each) for each in product(*sides)]
        if isinstance(node, ast.IfExp):
            texts = [each for each in (node.body, node.orelse) if ast.unparse(each) != "None"]
            return [text for each in texts for text in self.templates(each, scope, depth)]
        if isinstance(node, ast.Name):
            return self._named(node, scope, depth)
        if isinstance(node, ast.Call):
            returned = self._returned(node, scope, depth)
            if returned:
                return returned
        value = self._value(node, scope)
        return [str(value)] if isinstance(value, PLAIN) else [f"{{{label(node)}}}"]

    def _formatted(self, node: ast.FormattedValue, scope: Scope, depth: int) -> list[str]:
        inner = node.value
        if isinstance(inner, ast.IfExp):
            return self.templates(inner, scope, depth)
        if isinstance(inner, ast.Name):
            texts = self.templates(inner, scope, depth)
            if inner.id in scope.given or all(" " in text for text in texts) or self._is_a_choice(inner, scope):
                return texts
        value = self._value(inner, scope)
        if isinstance(value, PLAIN):
            return [str(value)]
        return [f"{{{label(inner)}}}"]

    @staticmethod
    def _is_a_choice(node: ast.Name, scope: Scope) -> bool:
        """Whether a variable is set to one of several literal texts."""
        values = scope.values_at(node)
        return any(isinstance(each, ast.IfExp) for each in values) and all(
            isinstance(part, ast.Constant) and isinstance(part.value, str)
            for each in values
            for part in ([each.body, each.orelse] if isinstance(each, ast.IfExp) else [each])
        )

    def _named(self, node: ast.Name, scope: Scope, depth: int) -> list[str]:
        name = node.id
        if name in scope.given:
            return scope.given[name]
        if values := scope.values_at(node):
            return [text for value in values for text in self.templates(value, scope, depth)]
        if name in scope.parameters:
            return self._phrases_given(name, scope, depth) or [f"{{{name}}}"]
        value = getattr(scope.module.namespace, name, None)
        return [str(value)] if isinstance(value, PLAIN) else [f"{{{label(node)}}}"]

    def _phrases_given(self, parameter: str, scope: Scope, depth: int) -> list[str]:
        """Return the texts of several words that calls pass for a parameter."""
        function = scope.qualified_name.rpartition(".")[2]
        position, found = scope.parameters.index(parameter), dict[str, None]()
        for other, node in self._calls_of.get(function, []) if function != "__init__" else []:
            if other.module is scope.module or other.module.imports(function, scope.module):
                given = {each.arg: each.value for each in node.keywords}
                value = node.args[position] if len(node.args) > position else given.get(parameter)
                found |= dict.fromkeys(self.templates(value, other, depth) if value is not None else [])
        return [text for text in found if " " in text]

    @cached_property
    def _calls_of(self) -> dict[str, list[tuple[Scope, ast.Call]]]:
        calls: dict[str, list[tuple[Scope, ast.Call]]] = {}
        for scope, node in self._calls:
            calls.setdefault(called(node), []).append((scope, node))
        return calls

    def _returned(self, node: ast.Call, scope: Scope, depth: int) -> list[str]:
        """Return the texts of several words that a function of the package returns."""
        function = getattr(scope.module.namespace, ast.unparse(node.func), None)
        is_own = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self"
        module = scope.module if is_own else self._by_name.get(getattr(function, "__module__", ""))
        name = called(node)
        for inner, each in module.functions if module is not None else ():
            if inner.qualified_name.rpartition(".")[2] == name and isinstance(each, ast.FunctionDef):
                returns = [
                    one.value for one in own_nodes(each) if isinstance(one, ast.Return) and one.value is not None
                ]
                texts = [text for value in returns for text in self.templates(value, inner, depth)]
                return [text for text in texts if " " in text]
        return []

    def _value(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression of constants; None for any other expression."""
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        if names & {*scope.parameters, *scope.values, "self", "install_command"}:  # which depends on the machine
            return None
        constants = {name: self._constants[name] for name in names if name in self._constants}
        try:
            return eval(compile(ast.Expression(node), "<reference>", "eval"), constants | vars(scope.module.namespace))
        except Exception:  # noqa: BLE001 not an expression of constants
            return None

    def _class(self, node: ast.expr, scope: Scope) -> type | None:
        before, _, name = ast.unparse(node).rpartition(".")
        holder = getattr(scope.module.namespace, before, None) if before else scope.module.namespace
        found = getattr(holder, name, None) or (None if before else getattr(builtins, name, self._classes.get(name)))
        return found if isinstance(found, type) else None

    @cached_property
    def _constants(self) -> dict[str, Any]:
        """The constants of the package by name, for those imported within a function."""
        return {
            name: value
            for module in self.modules
            for name, value in vars(module.namespace).items()
            if name.isupper() and isinstance(value, PLAIN)
        }

    @cached_property
    def _classes(self) -> dict[str, type]:
        """The classes of the package by name, for those imported within a function."""
        return {
            name: value
            for module in self.modules
            for name, value in vars(module.namespace).items()
            if isinstance(value, type) and value.__module__.startswith("tarry")
        }


def called(node: ast.Call) -> str:
    """Return the name of a called function or method."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def label(node: ast.expr) -> str:
    """Return a name for a value in a template."""
    if isinstance(node, ast.Name):
        return node.id.lower().strip("_")
    if isinstance(node, ast.Attribute) and node.attr != "name":
        return "type" if node.attr == "__name__" else node.attr.strip("_")
    if isinstance(node, ast.Call) and called(node) in LABELS:
        return LABELS[called(node)]
    inner = _main_part(node)
    return "..." if inner is None else label(inner)


LABELS = {"install_command": "command", "len": "number", "type_name": "type", "name_of": "type"}


def _main_part(node: ast.expr) -> ast.expr | None:
    """Return the part of an expression that names its value best."""
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return node.value
    if isinstance(node, ast.Call):
        return node.args[0] if node.args else None
    if isinstance(node, ast.BoolOp):
        return node.values[0]
    if isinstance(node, (ast.BinOp, ast.Compare)):
        return node.left
    if isinstance(node, ast.IfExp):
        return node.body
    return node.generators[0].iter if isinstance(node, (ast.GeneratorExp, ast.ListComp)) else None


def holds_text(node: ast.AST) -> bool:
    """Whether an expression contains a literal text."""
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node))


def _place(scope: Scope) -> str:
    return ".".join(filter(None, (scope.module.name, scope.qualified_name)))
