"""`make mutants`: where it edits the package, which mutants a sample has, and which tests it runs for a mutant."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.mutants import __main__ as tool
from tests.mutants.operators import Mutant, mutants
from tests.mutants.private import run_tests
from tests.mutants.recorder import Recording


def edits(text: str) -> set[str]:
    return {f"{each.old} -> {each.new}" for each in mutants("a.py", text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", {"< -> <=", "< -> >="}),
        ("a not in (b)", {"not in -> in"}),
        ("a is None", {"is -> is not"}),
        ("a + b", {"+ -> -"}),
        ("a -= b", {"-= -> +="}),
        ("a and b or c", {"and -> or", "or -> and"}),
        ("not (a)", {"not  -> "}),
        ("if a: f()", {"a -> not a", "f() -> pass"}),
        ("f(1, True)", {"1 -> 2", "1 -> 0", "True -> False", "f(1, True) -> pass"}),
        ("def f(): return a", {"a -> None"}),
        ("def f(): return None", {"None -> True"}),
        ("def f(): raise A(b)", {"raise A(b) -> pass"}),
        ("x = min(a, b)", {"min -> max"}),
        ("for a in b: break", {"break -> continue"}),
        ("def f(a=(), *, b=None): ...", {"() -> None"}),
    ],
)
def test_each_operator_edits_its_place(text: str, expected: set[str]) -> None:
    assert edits(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        '"""Of 1 + 1."""',
        "def f(a: Annotated[int, 1 < 2]) -> Literal[1]: ...",
        "a: Literal[1]",
        "if TYPE_CHECKING:\n    x = 1 + 1",
        "@dataclass(frozen=True)\nclass A: ...",
        '__all__ = ["a"]',
        'x = f"{a + 1}"',
        "assert_never(a)",
    ],
)
def test_annotations_and_texts_are_left_alone(text: str) -> None:
    assert edits(text) == set()


def test_an_edit_leaves_all_other_lines_where_they_are() -> None:
    text = 'x = "é"; y = "ü" if a < b else 0\nlog(\n    1,\n)\nz = 2\n'
    for mutant in mutants("a.py", text):
        after = mutant.apply(text)
        assert len(after.splitlines()) == len(text.splitlines())
        assert sum(one != other for one, other in zip(text.splitlines(), after.splitlines(), strict=True)) in (1, 3)
    text = Path(sys.modules[mutants.__module__].__file__ or "").read_text()
    for mutant in mutants("operators.py", text)[::10]:
        ast.parse(mutant.apply(text))


def some(room: str, count: int) -> list[Mutant]:
    return [Mutant(f"{room}/a.py", line, 0, "1", "2", range(0), ()) for line in range(count)]


def test_a_sample_has_of_each_room_as_many_as_its_share_and_is_the_same_for_a_seed() -> None:
    found = some("settle", 300) + some("sqs", 100)
    chosen = tool.sample(found, "7", 40)
    assert Counter(each.room for each in chosen) == {"settle": 30, "sqs": 10}
    assert tool.sample(found, "7", 40) == chosen != tool.sample(found, "8", 40)
    assert {*tool.sample(found, "7", 1000)} == {*found}


def test_the_tests_of_a_mutant_run_fastest_first_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"limits.py": "MOST = 10\n", "use.py": "def f(a):\n    return MOST + a\n"}
    monkeypatch.setattr(tool, "all_files", lambda: tuple(texts))
    monkeypatch.setattr(tool, "text_of", texts.__getitem__)
    data = CoverageData(str(tmp_path / "data"))
    for test, lines in {"slow": [2], "fast": [2], "middle": [2], "other": [1], "failing": [2]}.items():
        data.set_context(test)
        data.add_lines({"/copy/layers/tarry/python/tarry/use.py": lines})
    data.write()
    recorded = Recording(tmp_path / "data", {"slow": tool.SECONDS, "middle": 2.0, "fast": 1.0, "other": 0.1})

    in_function, constant = mutants("use.py", texts["use.py"])[0], mutants("limits.py", texts["limits.py"])[0]

    assert tool.tests_of(in_function, recorded) == ["fast", "middle"]
    assert tool.tests_of(constant, recorded) == ["fast", "middle"]
    seconds = {f"tests/{name}": spent for name, spent in {"a::x": 1.0, "b::x": 3.5, "unit/a::x": 1.0}.items()}
    assert tool.near_first(list(seconds), seconds) == [["tests/unit/a::x", "tests/a::x"], ["tests/b::x"]]


def test_each_listed_equivalent_is_a_mutant_of_the_package_and_has_a_reason() -> None:
    for (file, before, after), reason in tool.equivalents().items():
        assert (before, after) in {tool.change(each) for each in mutants(file, tool.text_of(file))}, (file, before)
        assert reason


@pytest.mark.parametrize(
    ("body", "limit", "expected"),
    [("pass", 120, "passed"), ("assert 0", 120, "FAILED"), ("import time; time.sleep(600)", 0.5, "no end")],
)
def test_a_run_passes_only_if_its_tests_pass_in_time(tmp_path: Path, body: str, limit: float, expected: str) -> None:
    (root := tmp_path / "repository").mkdir()
    (root / "test_a.py").write_text(f"def test_a():\n    {body}\n")
    without_plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # which take most of the time
    assert expected in (run_tests(root, ["test_a.py"], limit, without_plugins) or "passed")
