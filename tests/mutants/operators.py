"""The mutants of a module. Each is an edit of its text at a place that `ast` finds, so its other lines stay."""

import ast
import re
from bisect import bisect_right
from dataclasses import dataclass

BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
NEGATION = {
    "<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "==",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is",
}  # fmt: skip
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*"}
TOKENS: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in",
    ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.FloorDiv: "//", ast.Mod: "%", ast.And: "and", ast.Or: "or",
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min"}
NOT_RUN = {"assert_never", "cast", "TypeVar", "ParamSpec", "NewType"}
"""Calls that only the type checker reads, or that are never reached."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """A module with one edit."""

    file: str
    """The path from the folder of the package."""
    line: int
    column: int
    """From 0, in bytes."""
    old: str
    new: str
    around: range
    """The lines of the statement around it, of a compound statement those of its head; for a default value, the body of
    its function."""
    names: tuple[str, ...]
    """The names that the statement assigns, where only the import runs it."""

    @property
    def room(self) -> str:
        """The folder of the file, without ``tools/``; modules outside a folder are of the room ``tarry``."""
        file = self.file.removeprefix("tools/")
        return file.partition("/")[0] if "/" in file else "tarry"

    def apply(self, text: str) -> str:
        """Return the text of the module with the edit."""
        lines = text.encode().splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        data, old = text.encode(), self.old.encode()
        assert data.startswith(old, start), f"{self.file}:{self.line} is not {self.old!r}"
        return (data[:start] + self.new.encode() + data[start + len(old) :]).decode()

    @property
    def lines(self) -> range:
        """The lines of the edited text."""
        return range(self.line, self.line + self.old.count("\n") + 1)


def mutants(file: str, text: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines."""
    found = _Finder(file, text)
    found.visit(ast.parse(text))
    return sorted(set(found.mutants), key=lambda each: (each.line, each.column, each.new))


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, text: str) -> None:
        self.mutants: list[Mutant] = []
        self._file, self._data = file, text.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._around = range(0)
        self._names: tuple[str, ...] = ()
        self._is_run = False
        """Whether a function runs the place, not the import."""

    def visit(self, node: ast.AST) -> None:
        outer = self._around, self._names
        if isinstance(node, ast.stmt):
            self._around, self._names = _head(node), () if self._is_run else _assigned(node)
        super().visit(node)
        self._around, self._names = outer

    # Where nothing is edited: annotations, texts, and what is there for the type checker.

    def visit_FunctionDef(self, node: Function) -> None:
        for each in node.decorator_list:
            self.visit(each)
        outer = self._is_run, self._around
        self._is_run, self._around = True, range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._default(default)
        for statement in node.body:
            self.visit(statement)
        self._is_run, self._around = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 the name is that of `ast`

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in (*node.keywords, *node.body):
            self.visit(each)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts alone. Besides, Python 3.11 does not know where in a text an expression stands."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self._condition(node.test)
            self.generic_visit(node)

    # The edits.

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            token = TOKENS[type(operator)]
            for new in {BOUNDARY.get(token), NEGATION.get(token)} - {None}:
                self._operator(left, right, token, str(new))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        token = TOKENS.get(type(node.op), "")
        if token in ARITHMETIC and not any(_is_text(each) for each in (node.left, node.right)):
            self._operator(node.left, node.right, token, ARITHMETIC[token])
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        token = TOKENS.get(type(node.op), "")
        if token in ARITHMETIC and not _is_text(node.value):
            self._operator(node.target, node.value, f"{token}=", f"{ARITHMETIC[token]}=")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        token = TOKENS[type(node.op)]
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._operator(left, right, token, "or" if token == "and" else "and")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._edit(start := self._start(node), start + len("not "), "")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, repr(node.value + 1))
            self._replace(node, repr(node.value - 1))

    def visit_Return(self, node: ast.Return) -> None:
        value = node.value.value if isinstance(node.value, ast.Constant) else ...
        if node.value is not None and not isinstance(value, bool):
            self._replace(node.value, "True" if value is None else "None")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call) and not (isinstance(call.func, ast.Name) and call.func.id in NOT_RUN):
            self._drop(node)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._drop(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in EXTREMES:
            self._replace(node.func, EXTREMES[name])
        if name == "cast":
            self.visit(node.args[1])
        elif name not in NOT_RUN:
            self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def _default(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and not isinstance(node.value, str | bytes):
            self.visit(node)
        else:
            self._replace(node, "None")

    def _condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            self._edit(self._start(test), self._end(test), f"not {self._text(test)}")

    def _drop(self, node: ast.stmt) -> None:
        """Leave as many lines as there were."""
        self._replace(node, "pass" + "\n" * ((node.end_lineno or node.lineno) - node.lineno))

    def _operator(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        start, end = self._end(left), self._start(right)
        words = r"\s+".join(map(re.escape, old.split()))
        pattern = rf"\b{words}\b" if old[0].isalpha() else words
        if match := re.search(pattern.encode(), self._data[start:end]):
            self._edit(start + match.start(), start + match.end(), new)

    def _replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        self._edit(self._start(node), self._end(node), new)

    def _edit(self, start: int, end: int, new: str) -> None:
        line = bisect_right(self._starts, start)
        old = self._data[start:end].decode()
        if old != new:
            column = start - self._starts[line - 1]
            self.mutants.append(Mutant(self._file, line, column, old, new, self._around, self._names))

    def _text(self, node: ast.expr) -> str:
        return self._data[self._start(node) : self._end(node)].decode()

    def _start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def _end(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _head(statement: ast.stmt) -> range:
    inner = getattr(statement, "body", None) or [case.pattern for case in getattr(statement, "cases", ())]
    end = max(statement.lineno, inner[0].lineno - 1) if inner else statement.end_lineno or statement.lineno
    return range(statement.lineno, end + 1)


def _assigned(statement: ast.stmt) -> tuple[str, ...]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    walked = (node for target in targets if isinstance(target, ast.expr) for node in ast.walk(target))
    return tuple(node.id for node in walked if isinstance(node, ast.Name))
