"""Diagnoses: an error's type, message, traceback and fingerprint as text."""

import asyncio
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tarry import Reject
from tarry.message import diagnosis
from tarry.message.diagnosis import (
    MAX_CACHED_FRAMES,
    MAX_CACHED_TRACEBACKS,
    MAX_MESSAGE_CHARACTERS,
    Diagnoses,
    Diagnosis,
    diagnose,
)


class StockDeclined(Exception):
    pass


def caught(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001 the tests inspect it
        return error
    raise AssertionError("nothing was raised")


def diagnosis_of(function: Callable[[], Any]) -> Diagnosis:
    return diagnose(caught(function))


def decline(order: object = 1) -> None:
    raise StockDeclined(f"order {order} was declined")


def decline_elsewhere() -> None:
    raise StockDeclined("order 1 was declined")


# names and texts


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (ValueError("x"), "ValueError"),
        (StockDeclined("x"), f"{__name__}.StockDeclined"),
        (asyncio.IncompleteReadError(b"", 1), "asyncio.exceptions.IncompleteReadError"),
        (Reject("x"), "tarry.Reject"),
        (ExceptionGroup("x", [ValueError()]), "ExceptionGroup"),
    ],
    ids=["built in", "own", "library", "tarry", "group"],
)
def test_the_type_is_the_qualified_name_and_for_built_in_errors_the_name_alone(
    error: Exception, name: str
) -> None:  # SPEC F2
    assert diagnose(error).type == name


def test_the_type_of_a_local_class_includes_the_function() -> None:  # SPEC F2
    class Local(Exception):
        pass

    assert diagnose(Local()).type.endswith("<locals>.Local")


def test_a_very_long_type_name_is_cut() -> None:  # SPEC F3
    assert len(diagnose(type("X" * 5_000, (Exception,), {})()).type) <= 200


def test_the_message_is_the_text_of_the_error() -> None:  # SPEC F2
    assert diagnosis_of(decline).message == "order 1 was declined"


def test_an_error_without_a_text_has_no_message() -> None:  # SPEC F2
    assert diagnose(StockDeclined()).message == ""
    assert diagnose(StockDeclined()).line() == f"{__name__}.StockDeclined"


def test_the_message_of_a_group_includes_its_errors() -> None:  # SPEC F2
    group = ExceptionGroup("two things", [ValueError("a"), ExceptionGroup("inner", [KeyError("b")])])
    message = diagnose(group).message
    assert message.startswith("two things")
    assert "ValueError: a" in message
    assert "KeyError: 'b'" in message


class OddText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class NotText(Exception):
    def __str__(self) -> Any:
        return 7  # noqa: PLE0307 it is odd


class EndlessText(Exception):
    def __str__(self) -> str:
        return str(self)


@pytest.mark.parametrize("error", [OddText(), NotText(), EndlessText()], ids=lambda error: type(error).__name__)
def test_an_error_whose_str_fails_is_diagnosed(error: Exception) -> None:  # SPEC A2, F2
    diagnosis = diagnose(error)
    assert diagnosis.type == f"{__name__}.{type(error).__name__}"
    assert diagnosis.message
    assert diagnosis.fingerprint


# tracebacks


def test_the_traceback_has_frames_and_type_but_not_the_message() -> None:  # SPEC F3
    def handler() -> None:
        decline(order="secret-7")

    traceback = diagnosis_of(handler).traceback
    assert "in handler" in traceback
    assert "in decline" in traceback
    assert traceback.endswith(f"{__name__}.StockDeclined")
    assert "secret-7 was declined" not in traceback


def test_an_error_that_was_never_raised_has_no_traceback() -> None:  # SPEC B2, F2
    assert diagnose(ValueError("not raised")).traceback == ""


def test_a_traceback_shows_a_chain_from_its_origin_to_the_error() -> None:  # SPEC F2
    def chain() -> None:
        try:
            decline()
        except StockDeclined as error:
            raise ValueError("so it failed") from error

    traceback = diagnosis_of(chain).traceback
    assert traceback.index("in decline") < traceback.index("in chain\n    raise ValueError")
    assert traceback.index(f"{__name__}.StockDeclined") < traceback.rindex("ValueError")


def test_a_traceback_shows_an_implicit_context_unless_it_is_suppressed() -> None:  # SPEC F2
    def handling() -> None:
        try:
            decline()
        except StockDeclined:
            raise ValueError("while handling")  # noqa: B904 the implicit context is the point

    def suppressing() -> None:
        try:
            decline()
        except StockDeclined:
            raise ValueError("instead") from None

    assert "StockDeclined" in diagnosis_of(handling).traceback
    assert "in decline" not in diagnosis_of(suppressing).traceback


def test_a_chain_in_a_circle_ends() -> None:  # SPEC A2
    first, second = caught(decline), caught(decline_elsewhere)
    first.__cause__, second.__cause__ = second, first
    assert diagnose(first).traceback.count("which led to") == 1


def test_a_very_long_chain_is_diagnosed() -> None:  # SPEC A2
    error: BaseException = ValueError("0")
    for number in range(5_000):
        newer = ValueError(str(number))
        newer.__cause__ = error
        error = newer
    assert diagnose(error).type == "ValueError"
    assert diagnose(error).traceback.count("ValueError") == 50


def test_a_groups_traceback_shows_where_its_leaves_were_raised() -> None:  # SPEC F2
    leaf = caught(decline)
    assert isinstance(leaf, StockDeclined)

    def handler() -> None:
        raise ExceptionGroup("some failed", [leaf])

    assert "in decline" in diagnosis_of(handler).traceback


def test_the_traceback_of_an_endless_recursion_is_short() -> None:  # SPEC F2, F3
    def again() -> None:
        again()

    diagnosis = diagnosis_of(again)
    assert diagnosis.type == "RecursionError"
    assert "in again" in diagnosis.traceback
    assert len(diagnosis.traceback) < 20_000


def test_a_deeply_nested_group_is_diagnosed() -> None:  # SPEC A2
    error: Exception = ValueError("x")
    for _ in range(3_000):
        error = ExceptionGroup("nested", [error])
    assert diagnose(error).type == "ExceptionGroup"


# fingerprints


def fingerprint(function: Callable[[], Any]) -> str:
    return diagnosis_of(function).fingerprint


def test_a_fingerprint_is_twelve_hex_digits() -> None:  # DESIGN 3
    assert re.fullmatch("[0-9a-f]{12}", fingerprint(decline))


def test_another_text_at_the_same_place_has_the_same_fingerprint() -> None:  # SPEC F2
    uuid, moment, path = "6e0b3c1e-6d0f-4e0f-9d60-5b7d2a9e5d4b", "2026-11-21T08:03:36.927Z", "/tmp/tmp8f_x2k/part-01"
    orders = (1, "0x7f3a2b", "9 of 10", "", uuid, moment, path, "\x00\ud800😀")
    assert len({fingerprint(lambda order=order: decline(order)) for order in orders}) == 1


def test_another_place_has_another_fingerprint() -> None:  # SPEC F2
    assert fingerprint(decline) != fingerprint(decline_elsewhere)


def test_another_line_of_the_same_function_has_another_fingerprint() -> None:  # SPEC F2
    def two_places(first: bool) -> None:
        if first:
            raise StockDeclined("x")
        raise StockDeclined("x")

    assert fingerprint(lambda: two_places(True)) != fingerprint(lambda: two_places(False))


def test_another_call_path_to_the_same_place_has_another_fingerprint() -> None:  # SPEC F2
    def one_path() -> None:
        decline()

    def other_path() -> None:
        decline()

    assert fingerprint(one_path) != fingerprint(other_path)


def test_another_type_at_the_same_place_has_another_fingerprint() -> None:  # SPEC F2
    def either(kind: type[Exception]) -> None:
        raise kind("x")

    assert fingerprint(lambda: either(ValueError)) != fingerprint(lambda: either(KeyError))


def module_of(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "orders"}
    exec(compile(source, "/var/task/orders.py", "exec"), names)
    return names


def test_an_edit_elsewhere_in_the_file_keeps_the_fingerprint() -> None:  # SPEC F2
    source = "def handler():\n    x = 1\n    raise ValueError(x)\n"
    assert fingerprint(module_of(source)["handler"]) == fingerprint(module_of("import os\n\n\n" + source)["handler"])


def test_an_error_within_a_library_has_the_fingerprint_of_the_users_line() -> None:  # SPEC F2
    import json

    def read(text: str) -> None:
        json.loads(text)

    def read_too(text: str) -> None:
        json.loads(text)

    assert fingerprint(lambda: read("{")) == fingerprint(lambda: read('{"a": ['))
    assert fingerprint(lambda: read("{")) != fingerprint(lambda: read_too("{"))


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


def test_the_fingerprint_of_an_error_that_was_never_raised_depends_on_its_type() -> None:  # SPEC F2, B2
    assert diagnose(ValueError("a")).fingerprint == diagnose(ValueError("b")).fingerprint
    assert diagnose(ValueError("a")).fingerprint != diagnose(KeyError("a")).fingerprint


def test_the_fingerprint_of_a_group_depends_on_its_errors() -> None:  # SPEC F2
    def group(*leaves: Exception) -> None:
        raise ExceptionGroup("some failed", leaves)

    assert fingerprint(lambda: group(ValueError())) != fingerprint(lambda: group(KeyError()))
    of_two = {
        fingerprint(lambda leaves=leaves: group(*leaves))
        for leaves in ([ValueError("1"), KeyError()], [KeyError(), ValueError("2")])
    }
    assert len(of_two) == 1


# size


class HugeTextError(Exception):
    """An error with a huge text that counts how often the text is read."""

    reads = 0
    text = "x" * 5_000_000

    def __str__(self) -> str:
        type(self).reads += 1
        return self.text


def test_a_huge_text_is_read_once_and_cut_early() -> None:  # SPEC I2
    def raises() -> None:
        raise HugeTextError

    HugeTextError.reads = 0
    diagnosis = diagnosis_of(raises)
    assert HugeTextError.reads == 1
    assert len(diagnosis.message) == MAX_MESSAGE_CHARACTERS
    assert len(diagnosis.logged_line.encode()) <= 1_024


@pytest.mark.parametrize("character", ["x", "é", "😀", "\x00", "\ud800"], ids=ascii)
def test_all_texts_of_a_chain_together_show_at_most_2_kib_in_the_log(character: str) -> None:  # SPEC I2
    def chain() -> None:
        for _ in range(10):
            try:
                raise KeyError(character * 10_000)
            except KeyError as error:
                cause = error
        raise ValueError(character * 10_000) from cause

    traceback = diagnosis_of(chain).logged_traceback
    assert traceback.count(character) * len(character.encode("utf-8", "replace")) <= 2_048
    assert "ValueError: " in traceback
    assert "KeyError: " in traceback


def test_the_message_of_nested_groups_includes_only_a_few_errors() -> None:  # SPEC I2
    group: Exception = ValueError("leaf")
    for _ in range(6):
        group = ExceptionGroup("many", [group] * 20)
    assert len(diagnose(group).message) < 2_000


def test_an_error_that_fails_many_messages_is_diagnosed_once() -> None:  # SPEC B5, I2
    error = caught(decline)
    diagnoses = Diagnoses()
    assert diagnoses.of(error) is diagnoses.of(error)
    error.__traceback__ = None
    assert "in decline" in diagnoses.of(error).traceback


def test_an_error_that_is_raised_at_another_place_is_diagnosed_anew() -> None:  # SPEC F2
    error = ValueError("one object for all")
    diagnoses = Diagnoses()

    def here() -> None:
        raise error

    def there() -> None:
        raise error.with_traceback(None)

    first = diagnoses.of(caught(here))
    second = diagnoses.of(caught(there))
    assert first.fingerprint != second.fingerprint


def test_a_place_that_fails_again_is_formatted_and_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formatting a traceback takes longer than all else about a failed message."""
    formatted, format_tb = [], traceback.format_tb
    hashed, places = [], diagnosis._places
    monkeypatch.setattr(traceback, "format_tb", lambda trace: formatted.append(trace) or format_tb(trace))
    monkeypatch.setattr(diagnosis, "_places", lambda trace: hashed.append(trace) or places(trace))
    found = {diagnosis_of(decline_elsewhere_again) for _ in range(3)}
    assert len(found) == len(formatted) == len(hashed) == 1


def test_the_same_code_in_two_modules_and_two_types_at_one_place_have_fingerprints_of_their_own() -> None:
    code = compile("def fail(kind): raise kind", "shared.py", "exec")
    found = []
    for module in ("orders", "ledger"):
        names: dict[str, Any] = {"__name__": module}
        exec(code, names)
        found += [fingerprint(lambda kind=kind, names=names: names["fail"](kind)) for kind in (ValueError, KeyError)]
    assert len(set(found)) == 4


def decline_elsewhere_again() -> None:
    raise StockDeclined("order 2 was declined")


def test_equal_functions_of_two_files_and_two_lines_of_a_function_keep_their_own_places() -> None:
    """Code objects compare equal even if their files differ."""
    source = "def handle(number):\n    if number:\n        raise ValueError\n    raise ValueError"
    found = []
    for file in ("orders.py", "ledger.py"):
        names: dict[str, Any] = {}
        exec(compile(source, file, "exec"), names)
        found += [diagnosis_of(lambda number=number, names=names: names["handle"](number)) for number in (0, 1)]
    places = [re.findall(r'File "(\w+)\.py", line (\d)', each.traceback)[-1] for each in found]
    assert places == [("orders", "4"), ("orders", "3"), ("ledger", "4"), ("ledger", "3")]


def test_few_tracebacks_are_kept_and_none_of_a_deep_recursion() -> None:
    def recurse(depth: int) -> None:
        if not depth:
            raise ValueError
        recurse(depth - 1)

    for depth in range(MAX_CACHED_FRAMES + 10):
        assert "recurse" in diagnosis_of(lambda depth=depth: recurse(depth)).traceback
    for number in range(2 * MAX_CACHED_TRACEBACKS):
        names: dict[str, Any] = {}
        exec(compile("\n" * number + "def fail(): raise ValueError", "many.py", "exec"), names)
        assert f"line {number + 1}," in diagnosis_of(names["fail"]).traceback
    assert len(diagnosis._stacks) <= MAX_CACHED_TRACEBACKS
    assert max(len(stack._codes) for stack in diagnosis._stacks.values()) <= MAX_CACHED_FRAMES
