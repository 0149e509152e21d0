"""Diagnoses: an error's type, message, traceback and fingerprint as text."""

import asyncio
import json
import re
import traceback
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tarry import Reject
from tarry.message import diagnosis
from tarry.message.diagnosis import Diagnoses, Diagnosis, details_of, diagnose, problems_of, shortened


class StockDeclined(Exception):
    pass


def caught(function: Callable[..., Any], *arguments: Any) -> BaseException:
    try:
        function(*arguments)
    except BaseException as error:  # noqa: BLE001 the tests inspect it
        return error
    raise AssertionError("nothing was raised")


def diagnosis_of(function: Callable[..., Any], *arguments: Any) -> Diagnosis:
    return diagnose(caught(function, *arguments))


def fingerprint(function: Callable[..., Any], *arguments: Any) -> str:
    return diagnosis_of(function, *arguments).fingerprint


def decline(order: object = 1) -> None:
    raise StockDeclined(f"order {order} was declined")


def decline_elsewhere() -> None:
    raise StockDeclined("order 1 was declined")


def names_of(source: str, file: str = "orders.py", module: str = "orders") -> dict[str, Any]:
    """Return the names of a module with this source."""
    names: dict[str, Any] = {"__name__": module}
    exec(compile(source, file, "exec"), names)
    return names


# names and texts


class Local:
    class Error(Exception):
        pass


class OddText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NotText(Exception):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307 it is odd


class EndlessText(Exception):
    def __str__(self) -> str:
        return str(self)


NESTED = ExceptionGroup("two things", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError("x"), "ValueError", "x"),
        (StockDeclined("x"), f"{__name__}.StockDeclined", "x"),
        (Local.Error("x"), f"{__name__}.Local.Error", "x"),
        (StockDeclined(), f"{__name__}.StockDeclined", ""),
        (asyncio.IncompleteReadError(b"", 1), "asyncio.exceptions.IncompleteReadError", "0 bytes read on a total of 1"),
        (Reject("x"), "tarry.Reject", "x"),
        (NESTED, "ExceptionGroup", "two things.*: ValueError: a; .*KeyError: 'b'"),
        (OddText(), f"{__name__}.OddText", "."),
        (NotText(), f"{__name__}.NotText", "."),
        (EndlessText(), f"{__name__}.EndlessText", "."),
        (type("X" * 5_000, (Exception,), {})("x"), ".*X{100}.{0,70}", "x"),  # cut
    ],
    ids=lambda value: type(value).__name__[:20],
)
def test_a_diagnosis_has_the_qualified_name_of_the_error_and_its_text_even_if_str_fails(
    error: Exception, name: str, message: str
) -> None:  # SPEC A2, F2, F3
    """Built-in errors have their name alone; a text may be missing. An error that was never raised has no traceback."""
    found = diagnose(error)
    assert re.fullmatch(name, found.type)
    assert re.match(message, found.message)
    assert (found.message == "") == (message == "")
    assert found.line() == (f"{found.type}: {found.message}" if message else found.type)
    assert found.traceback == ""
    assert re.fullmatch("[0-9a-f]{12}", found.fingerprint)  # DESIGN 3


@pytest.mark.parametrize(
    ("number", "end"), [(1, "0: integer"), (20, "19: integer"), (21, "19: integer; and 1 more"), (23, "; and 3 more")]
)
def test_of_a_validation_error_20_problems_are_shown(number: int, end: str) -> None:  # SPEC K2
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(list[int]).validate_python(["secret"] * number)
    text = problems_of(raised.value, ()).replace("Input should be a valid integer, unable to parse string as an ", "")
    assert text.endswith(end)
    assert {name for each in details_of(raised.value) for name in each} == {"type", "loc", "msg"}


# tracebacks


def from_error() -> None:
    try:
        decline()
    except StockDeclined as error:
        raise ValueError("so it failed") from error


def while_handling() -> None:
    try:
        decline()
    except StockDeclined:
        raise ValueError("while handling")  # noqa: B904 the implicit context is the point


def from_none() -> None:
    try:
        decline()
    except StockDeclined:
        raise ValueError("instead") from None


def in_a_group() -> None:
    raise ExceptionGroup("some failed", [caught(decline)])  # type: ignore[type-var]


def test_a_traceback_has_frames_and_types_from_the_origin_to_the_error_but_no_texts() -> None:  # SPEC F2, F3
    name = f"{__name__}.StockDeclined"
    of_one = diagnosis_of(decline, "secret-7").traceback
    assert re.fullmatch(rf"(?s).*in caught\n.*in decline\n.*{name}", of_one)
    assert "secret-7" not in of_one
    for function in (from_error, while_handling):
        pattern = (
            rf"(?s).*in decline\n.*{name}\n\nwhich led to\n.*in {function.__name__}\n +raise ValueError.*ValueError"
        )
        assert re.fullmatch(pattern, diagnosis_of(function).traceback)
    assert "in decline" not in diagnosis_of(from_none).traceback
    assert "in decline" in diagnosis_of(in_a_group).traceback


def reject() -> None:
    raise Reject("no")


def test_errors_that_were_never_raised_and_signals_have_no_traceback_in_the_log() -> None:  # SPEC F2, L2
    never = ValueError("no")
    never.__cause__ = KeyError()
    assert diagnose(never).traceback == "KeyError\n\nwhich led to\n\nValueError"
    assert diagnose(never).logged_traceback == ""
    never.__cause__ = caught(decline)
    assert ("in decline" in diagnose(never).traceback, diagnose(never).logged_traceback) == (True, "")
    assert ("in reject" in diagnosis_of(reject).traceback, diagnosis_of(reject).logged_traceback) == (True, "")
    bare = caught(decline).with_traceback(None)
    assert (diagnose(bare).traceback, diagnose(bare).logged_traceback) == ("", "")
    names = names_of(SHARED, "odd.py") | {"__loader__": SimpleNamespace(get_source=lambda _: 1 / 0)}
    exec(SHARED, names)
    found = diagnosis_of(FunctionType(names["fail"].__code__.replace(co_filename="odd.py"), names), ValueError)
    assert (found.traceback, found.logged_traceback) == ("<ZeroDivisionError while describing it>", "")


def test_circular_very_long_and_deep_errors_are_diagnosed_with_short_tracebacks() -> None:  # SPEC A2, F2, F3
    first, second = caught(decline), caught(decline_elsewhere)
    first.__cause__, second.__cause__ = second, first
    assert diagnose(first).traceback.count("which led to") == 1
    error: BaseException = ValueError("0")
    for number in range(5_000):
        newer = ValueError(str(number))
        newer.__cause__ = error
        error = newer
    assert (diagnose(error).type, diagnose(error).traceback.count("ValueError")) == ("ValueError", 50)
    deep: Exception = ValueError("x")
    for _ in range(3_000):
        deep = ExceptionGroup("nested", [deep])
    assert diagnose(deep).type == "ExceptionGroup"

    def again() -> None:
        again()

    endless = diagnosis_of(again)
    assert (endless.type, "in again" in endless.traceback) == ("RecursionError", True)
    assert len(endless.traceback) < 20_000


# fingerprints


def either(kind: type[Exception]) -> None:
    raise kind("x")


def two_lines(first: bool) -> None:
    if first:
        raise StockDeclined("x")
    raise StockDeclined("x")


def one_path() -> None:
    decline()


def other_path() -> None:
    decline()


def read(text: str) -> None:
    json.loads(text)


def read_too(text: str) -> None:
    json.loads(text)


def group_of(*leaves: Exception) -> None:
    raise ExceptionGroup("some failed", leaves)


SOURCE = "def handler():\n    x = 1\n    raise ValueError(x)\n"
UUID, MOMENT, PATH = "6e0b3c1e-6d0f-4e0f-9d60-5b7d2a9e5d4b", "2026-11-21T08:03:36.927Z", "/tmp/tmp8f_x2k/part-01"
ORDERS = (1, "0x7f3a2b", "9 of 10", "", UUID, MOMENT, PATH, "\x00\ud800😀")
SHARED = "def fail(kind): raise kind"
Calls = list[tuple[Any, ...]]


def in_module(name: Any) -> Any:
    """Return one function that raises its argument, in a module of this name."""
    return FunctionType(ONE_CODE, {"__name__": name, "__builtins__": __builtins__})


ONE_CODE = names_of(SHARED, "shared.py")["fail"].__code__


@pytest.mark.parametrize(
    ("calls", "number"),
    [
        ([(decline, order) for order in ORDERS], 1),
        ([(decline,), (decline_elsewhere,)], 2),
        ([(two_lines, True), (two_lines, False)], 2),
        ([(one_path,), (other_path,)], 2),
        ([(either, ValueError), (either, KeyError)], 2),
        ([(names_of(above + SOURCE)["handler"],) for above in ("", "import os\n\n\n")], 1),
        ([(in_module(m), kind) for m in ("a", "b", [], {}) for kind in (ValueError, KeyError)], 8),
        ([(in_module("m" * 200 + more), ValueError) for more in ("", "a", "b")], 1),
        ([(in_module("m" * 199 + more), ValueError) for more in ("", "a", "b")], 3),
        ([(read, "{"), (read, '{"a": [')], 1),  # the error is raised within a library
        ([(read, "{"), (read_too, "{")], 2),
        ([(group_of, ValueError()), (group_of, KeyError())], 2),
        ([(group_of, ValueError("1"), KeyError()), (group_of, KeyError(), ValueError("2"))], 1),
    ],
)
def test_a_fingerprint_depends_on_the_type_and_the_users_places_and_not_on_texts(calls: Calls, number: int) -> None:
    """SPEC F2."""
    assert len({fingerprint(*call) for call in calls}) == number


def test_the_fingerprint_of_an_error_that_was_never_raised_depends_on_its_type() -> None:  # SPEC F2, B2
    found = [diagnose(error).fingerprint for error in (ValueError("a"), ValueError("b"), KeyError("a"))]
    assert found[0] == found[1] != found[2]


def test_a_recursion_has_the_same_fingerprint_from_any_depth() -> None:  # SPEC F2
    """With one more decorator around the handler, an endless recursion ends a frame earlier."""

    def again() -> None:
        again()

    def handler() -> None:
        again()

    def below(depth: int) -> BaseException:
        return below(depth - 1) if depth else caught(handler)

    def trimmed(error: BaseException) -> BaseException:
        """Return the error with a traceback that begins at the handler, as the runtime sees it."""
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_name != "handler":
            trace = trace.tb_next
        return error.with_traceback(trace)

    assert diagnose(trimmed(below(0))).fingerprint == diagnose(trimmed(below(5))).fingerprint


# size


class HugeTextError(Exception):
    """An error with a huge text that counts how often the text is read."""

    reads = 0
    text = "x" * 5_000_000

    def __str__(self) -> str:
        type(self).reads += 1
        return self.text


def test_a_huge_text_is_read_once_and_cut_early_and_of_nested_groups_only_a_few_errors_are_shown() -> None:  # SPEC I2
    found = diagnosis_of(either, HugeTextError)
    assert (HugeTextError.reads, len(found.message)) == (1, 1_048_576)
    assert len(found.logged_line.encode()) == 1_024
    assert len(found.logged_traceback.rpartition("HugeTextError: ")[2]) == 2_048
    many = diagnosis_of(group_of, ExceptionGroup("first", [KeyError()] * 15), *[ValueError()] * 15)
    texts = ["KeyError"] * 15 + ["ValueError"] * 5
    assert many.message.partition("first (15 sub-exceptions): ")[2] == "; ".join(texts[:19])
    assert many.traceback.split("\n\none of whose errors is\n\n")[1:] == texts
    group: Exception = ValueError("leaf")
    for _ in range(6):
        group = ExceptionGroup("many", [group] * 20)
    assert len(diagnose(group).message) < 2_000
    for _ in range(9):
        group = ExceptionGroup("many", [group])
    assert (diagnose(group).message.count("ExceptionGroup: "), diagnose(group).message[-5:]) == (5, ": ...")


def test_of_a_long_traceback_the_end_is_logged_and_of_a_frame_that_is_too_long_the_beginning() -> None:  # SPEC I2
    names = names_of("def odd(): even()\ndef even(): odd()", "o" * 100)
    logged = diagnosis_of(names["odd"]).logged_traceback
    assert (logged[:4], len(logged), "\nRecursionError: maximum" in logged) == ("...\n", 16_384, True)


@pytest.mark.parametrize(("field", "limit"), [("traceback", 262_144), ("logged_traceback", 16_384)])
def test_of_a_long_traceback_the_end_is_kept_and_of_a_frame_that_is_too_long_the_beginning(
    field: str, limit: int
) -> None:  # SPEC F3, I2
    def traceback_of(length: int) -> str:
        text: str = getattr(diagnosis_of(names_of(SHARED, "o" * length)["fail"], ValueError), field)
        return text

    short = traceback_of(1)
    fits, frame = limit - len(short) + 1, short.index('  File "o')
    for more, start, kept in (
        (0, short[:10], limit), (1, "...\n", limit), (frame - 4, '...\n  File "o', limit),
        (frame - 3, '  File "o', limit - 3), (limit, '  File "o', limit),
    ):  # fmt: skip
        found = traceback_of(fits + more)
        assert (found[: len(start)], len(found)) == (start, kept)


@given(st.text(st.sampled_from("xé😀\x00\ud800"), max_size=30), st.integers(4, 30))
def test_a_shortened_text_has_as_many_characters_as_fit_beside_its_ellipsis(text: str, limit: int) -> None:  # SPEC I2
    found, sizes = shortened(text, limit), [len(each.encode("utf-8", "replace")) for each in text]
    if sum(sizes) <= limit:
        assert found == text
        return
    kept = max(count for count in range(len(text)) if sum(sizes[:count]) <= limit - 3)
    assert found == text[:kept].encode("utf-8", "replace").decode() + "..."


@pytest.mark.parametrize(
    ("lengths", "shown"),
    [
        ([2_048], [2_048]), ([2_049], [2_048]), ([1_536, 512], [1_536, 512]), ([2_000, 600], [1_536, 512]),
        ([9_999] * 3, [1_536, 512, 0]), ([100] + [9_999] * 5, [100, 512, 512, 512, 412, 0]),
        ([1_532, 512, 9], [1_532, 512, 4]), ([1_533, 512, 9], [1_533, 512, 0]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("character", ["x", "é"])
def test_the_texts_of_a_chain_show_at_most_2_kib_in_the_log_of_which_a_cause_has_512_bytes(
    lengths: list[int], shown: list[int], character: str
) -> None:  # SPEC I2
    def chain(*texts: str) -> None:
        try:
            if len(texts) > 1:
                chain(*texts[1:])
        finally:
            raise StockDeclined(texts[0])

    size = len(character.encode())
    texts = [character * (length // size) + "." * (length % size) for length in lengths]
    logged = diagnosis_of(chain, *texts).logged_traceback.split("\n\nwhich led to\n\n")
    found = [part.rpartition("StockDeclined")[2].removeprefix(": ") for part in logged[::-1]]
    assert [len(text.encode()) for text in found] == pytest.approx(shown, abs=0 if character == "x" else 3)
    assert all(part.startswith("Traceback (most recent call last):\n  File") for part in logged)


# what is kept


def test_an_error_that_fails_many_messages_is_diagnosed_once_unless_it_is_raised_at_another_place() -> None:
    """SPEC B5, F2, I2."""
    error, diagnoses = ValueError("one object for all"), Diagnoses()

    def here() -> None:
        raise error

    def there() -> None:
        raise error.with_traceback(None)

    first = diagnoses.of(caught(here))
    error.__traceback__, kept = None, error.__traceback__
    assert diagnoses.of(error) is first
    error.__traceback__ = kept
    assert "in here" in diagnoses.of(error).traceback
    assert diagnoses.of(caught(there)).fingerprint != first.fingerprint


def test_a_place_that_fails_again_is_formatted_and_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formatting a traceback takes longer than all else about a failed message."""
    formatted, format_tb = [], traceback.format_tb
    hashed, places = [], diagnosis._places
    monkeypatch.setattr(traceback, "format_tb", lambda trace: formatted.append(trace) or format_tb(trace))
    monkeypatch.setattr(diagnosis, "_places", lambda trace: hashed.append(trace) or places(trace))
    fail = names_of("def fail(): raise ValueError", "fresh.py")["fail"]
    found = {diagnosis_of(fail) for _ in range(3)}
    assert len(found) == len(formatted) == len(hashed) == 1


def test_equal_functions_of_two_files_and_two_lines_of_a_function_keep_their_own_places() -> None:
    """Code objects compare equal even if their files differ."""
    source = "def handle(number):\n    if number:\n        raise ValueError\n    raise ValueError"
    handlers = [names_of(source, f"{name}.py")["handle"] for name in ("orders", "ledger")]
    found = [diagnosis_of(handle, number).traceback for handle in handlers for number in (0, 1)]
    places = [re.findall(r'File "(\w+)\.py", line (\d)', each)[-1] for each in found]
    assert places == [("orders", "4"), ("orders", "3"), ("ledger", "4"), ("ledger", "3")]


def test_few_tracebacks_are_kept_and_none_of_a_deep_recursion() -> None:
    def recurse(depth: int) -> None:
        if not depth:
            raise ValueError
        recurse(depth - 1)

    kept: list[tuple[int, int]] = []
    diagnosis._stacks.clear()
    for depth in range(40):
        assert "recurse" in diagnosis_of(recurse, depth).traceback
    kept = [len(stack._codes) for stack in diagnosis._stacks.values()]
    assert max(kept) == 30
    for number in range(128):
        fail = names_of("\n" * number + "def fail(): raise ValueError", "many.py")["fail"]
        assert f"line {number + 1}," in diagnosis_of(fail).traceback
        kept.append(len(diagnosis._stacks))
    assert max(kept) == 64
