"""The pages of docs/reference/: generated pages are up to date, written pages are complete; and the public names."""

import ast
import inspect
import json
import re
from collections.abc import Callable
from difflib import unified_diff
from inspect import Parameter, signature
from typing import Any

import pytest
import typer.main

import tarry
from docs.generator import messages, metrics, sqs_api
from docs.generator.__main__ import DOCS, PICTURES, pages
from docs.generator.messages import Meanings, Messages, problems, read_meanings
from docs.generator.source import PACKAGE, Source, Text
from tarry.errors import Unsent
from tarry.message.failure_record import FLOORS_BYTES
from tarry.message.message import _OfPowertools
from tarry.observe.metrics import DIMENSIONS, METRICS
from tarry.record.attribute import (
    ERROR_IN_HISTORY_CHARACTERS,
    ESSENTIAL,
    FAILURE_KEYS,
    HISTORY_LENGTH,
    MAX_COUNT,
    MAX_DUE_AHEAD_SECONDS,
    MAX_NOTE_LENGTH,
    MAX_TOTAL,
    FailureRecord,
    dump,
    next_history,
    read_envelope,
)
from tarry.settings import MAX_CONCURRENCY, SETTINGS
from tarry.support.values import Value
from tarry.tools.cli.app import app
from tests.public import FILE, lines


@pytest.fixture(scope="module")
def found() -> Messages:
    return messages.collect(Source())


# generated


def test_the_generated_pages_are_up_to_date(found: Messages) -> None:
    stale = [path.name for path, text in pages(found).items() if not path.exists() or path.read_text("utf-8") != text]
    assert stale == [], "run make docs"


def test_the_pictures_are_those_of_their_runs_today() -> None:
    """The sample run of the README, and a run of the sandbox in the guide to testing."""
    stale = [path.name for path, draw in PICTURES.items() if path.read_text("utf-8") != draw()]
    assert stale == [], "run `make docs`, and look at the pictures"


def test_every_log_event_and_metric_has_a_meaning_every_error_a_section_and_every_key_is_in_use(
    found: Messages,
) -> None:
    """An error that is left out has a reason, and no sentence."""
    meanings = read_meanings()
    assert list(problems(found, meanings)) == []
    assert all(meanings.left_out.values())
    assert [each.key for each in found.errors if each.key in meanings.errors and each.key in meanings.left_out] == []
    assert {*metrics.meanings()} == {each.name for each in METRICS}
    assert DIMENSIONS == ("consumer", "queue"), "named on the page"


NO_MEANINGS = Meanings({}, {}, {}, {})
EVENT, ERROR = Text("sneezed", "consumer.sneeze", "bless you"), Text("ValueError", "consumer.sneeze", "got {value}")


def test_a_missing_or_unused_meaning_is_reported_in_a_sentence(found: Messages) -> None:
    sentences = list(problems(Messages([EVENT], [ERROR]), NO_MEANINGS))
    assert "The log event 'sneezed' has no meaning: add it to [events]" in "\n".join(sentences)
    assert "The text 'got {value}' has no section: add 'consumer.sneeze' to one of [sections]" in "\n".join(sentences)
    meanings = read_meanings()
    meanings.events["sneezed"], meanings.errors[ERROR.key] = ("A sneeze.", "Rest."), "Rest."
    meanings.left_out["consumer.sneeze"] = "private"
    sentences = list(problems(found, meanings))
    assert [each.partition(":")[0] for each in sentences] == [
        "The log event 'sneezed' is not in the code any more",
        "No error has the key 'ValueError consumer.sneeze' any more",
        "[left_out] names 'consumer.sneeze', which is not in the code any more",
    ]


def test_every_error_is_on_the_page_by_the_words_of_its_beginning(found: Messages) -> None:
    """A note of a command is there if it needs a sentence: it is not an error."""
    page, meanings = (DOCS / "messages.md").read_text("utf-8"), read_meanings()
    shown = [each for each in found.errors if not meanings.leaves_out(each) and each.name != "note"]
    assert len(shown) > 400
    assert [each.template for each in shown if messages.beginning(each.template) not in page] == []
    assert messages.beginning("ack takes {values}, got {ack}") == "ack takes {values}, got {ack}"
    assert messages.beginning("ack takes one of two, got {ack}") == "ack takes one of two"
    assert messages.beginning("{path}: no function reads it (of {all}): name one") == "{path}: no function reads it"


def test_a_parameter_of_sqs_is_served_refused_or_not_known() -> None:
    assert sqs_api.state_of("SendMessage", "DelaySeconds", required=False) == "served"
    assert sqs_api.state_of_setting("QueueArn") == "refused: Unknown Attribute QueueArn."
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sqs_api.VALUES, "DelaySeconds", None)  # as if it were not given
        patch.setitem(sqs_api.VALUES, "MaxNumberOfMessages", 11)
        with pytest.raises(LookupError, match=r"new parameter SendMessage\.DelaySeconds: add a value to VALUES in"):
            sqs_api.state_of("SendMessage", "DelaySeconds", required=False)
        assert sqs_api.state_of("ReceiveMessage", "MaxNumberOfMessages", required=False).startswith("refused: Value 11")
        patch.setitem(sqs_api.VALUES, "VisibilityTimeout", 30)  # as the queue has it
        assert sqs_api.state_of("ReceiveMessage", "VisibilityTimeout", required=False) == "not known"
        patch.delitem(sqs_api.REQUESTS, "ListQueues")
        with pytest.raises(LookupError, match="new operation ListQueues: add it to REQUESTS in"):
            sqs_api.state_of_operation("ListQueues")


def test_texts_are_read_with_their_variants_and_constants(found: Messages) -> None:
    templates = {(each.name, each.template) for each in [*found.events, *found.errors]}
    assert ("ConfigurationError", "concurrency must be a whole number from 1 to 1000, got {concurrency}") in templates
    lost = {each.template for each in found.events if each.name == "lease_lost"}
    assert len(lost) >= 4, "the consequence that a caller passes is part of the text"
    no_dead_letter_queue = {text for name, text in templates if name == "NoDeadLetterQueue"}
    assert len({text for text in no_dead_letter_queue if text.startswith("its dead-letter queue {target} is")}) == 2
    assert {each.level for each in found.events if each.name == "isolated_start"} == {"INFO"}


def test_every_field_of_a_line_is_in_the_table() -> None:
    page = (DOCS / "messages.md").read_text("utf-8")
    table = page[page.index("| field | value |") : page.index("An error is logged once")]
    named = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row)))
    assert fields_in_code() - named == set()


def fields_in_code() -> set[str]:
    """Return the names of fields in the log and the executor."""
    fields = set[str]()
    for name in ("observe/logs.py", "settle/executor.py"):
        for node in ast.walk(ast.parse((PACKAGE / name).read_text("utf-8"))):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                target = node.targets[0]
                if ast.unparse(target.value) in {"more", "line"} and isinstance(target.slice, ast.Constant):
                    fields.add(target.slice.value)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"fields", "line", "told"}:
                fields |= {each.value for each in getattr(node.value, "keys", []) if isinstance(each, ast.Constant)}
    assert {"consumer", "state", "error_type", "not_settled", "body"} <= fields
    return fields


def test_every_command_option_and_environment_variable_and_every_public_name_is_on_a_page() -> None:
    page = (DOCS / "command.md").read_text("utf-8")
    todo = [("tarry", typer.main.get_command(app))]
    while todo:
        name, command = todo.pop()
        subcommands = getattr(command, "commands", {})
        todo += [(f"{name} {each}", sub) for each, sub in subcommands.items()]
        if not subcommands:
            section = page[page.index(f"## `{name}`") :].partition("\n## ")[0]
            options = {each for parameter in command.params for each in parameter.opts if each.startswith("-")}
            assert {each for each in options - {"--help", "-h"} if f"`{each}`" not in section} == set()
    texts = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    pages = "".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    assert {each for each in re.findall(r"\bTARRY_[A-Z_]+\b", texts) if f"`{each}" not in pages} == set()
    assert {name for name in tarry.__all__ if not re.search(rf"`@?{name}\b", pages)} == set()
    assert set(tarry.__all__) <= set(dir(tarry))


# written by hand


def section(page: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading of any level."""
    text = (DOCS / page).read_text("utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no heading {heading!r}"
    return found[1]


def rows(text: str) -> dict[str, list[str]]:
    """Return the rows of tables by the names in their first cells."""
    cells = (re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|"))
    named = ((row, re.findall(r"`([\w.]+)", row[0])) for row in cells)
    return {name: [each.strip() for each in row] for row, names in named for name in names}


def parameters(function: Callable[..., object]) -> dict[str, str]:
    """Return the parameters of a function with their defaults as a table shows them."""
    given = [each for each in signature(function).parameters.values() if each.name != "self"]
    return {each.name: "required" if each.default is Parameter.empty else f"`{each.default!r}`" for each in given}


TABLES: dict[str, dict[str, Callable[..., object]]] = {
    "settings.md": {each.__name__: each for each in (
        tarry.RetryPolicy, tarry.Fixed, tarry.Linear, tarry.Exponential, tarry.Schedule, tarry.LogOptions)},
    "failure-steps.md": {each.__name__: each for each in (tarry.LocalRetry, tarry.SendAgain, tarry.DeadLetter)},
    "message.md": {
        "Queue": tarry.Queue, "`queue.send()`": tarry.Queue.send, "`queue.send_batch()`": tarry.Queue.send_batch},
}  # fmt: skip


@pytest.mark.parametrize("page", TABLES)
def test_a_table_has_every_parameter_with_its_default(page: str) -> None:
    for heading, function in TABLES[page].items():
        table = rows(section(page, heading))
        assert {name: table[name][2] for name in parameters(function) if name in table} == parameters(function)


def test_every_setting_of_a_consumer_is_on_the_page() -> None:
    table = rows(section("settings.md", "`@consumer` and `@batch_consumer`"))
    assert set(SETTINGS) == table.keys() - {"setting"}
    defaults = [table[name][2] for name in ("concurrency", "ack", "unsaid", "isolate")]
    assert defaults == ["`1`", '`"on_return"`', '`"ack"`', "`True`"]
    assert f"1 to {MAX_CONCURRENCY:,}" in table["concurrency"][1]


def public(kind: type) -> set[str]:
    """Return the public attributes of a class: its members, and the annotated attributes of its instances."""
    own = [each for each in kind.__mro__ if each.__module__.startswith("tarry") and each is not Value]
    names = {name for each in own for name in (*vars(each), *inspect.get_annotations(each))}
    return {name for name in names if not name.startswith("_") and not isinstance(vars(kind).get(name), _OfPowertools)}


ATTRIBUTES: list[tuple[type, str, set[str]]] = [
    (tarry.Message, "message.md", set()),
    (tarry.Batch, "message.md", {"context"}),
    (FailureRecord, "message.md", set()),
    (tarry.Queue, "message.md", {"name", "is_fifo", "delay"}),
    (tarry.SendError, "message.md", {"failed", "message_ids"}),
    (Unsent, "message.md", set()),
    (tarry.Failure, "failure-steps.md", set()),
    (tarry.Outcome, "failure-steps.md", set()),
    (tarry.State, "failure-steps.md", set()),
    (tarry.Schedule, "settings.md", set()),
]


@pytest.mark.parametrize(("kind", "page", "more"), ATTRIBUTES, ids=[kind.__name__ for kind, _, _ in ATTRIBUTES])
def test_a_page_names_every_attribute_of_a_class(kind: type, page: str, more: set[str]) -> None:
    text = (DOCS / page).read_text("utf-8")
    names = public(kind) | more
    assert names
    assert {name for name in names if not re.search(rf"`(?:\w+\.)?{name}\b", text)} == set()


@pytest.mark.parametrize("signal", [tarry.Retry, tarry.Reject, tarry.Discard, tarry.Defer, tarry.BatchError])
def test_the_page_shows_signals_with_their_parameters(signal: type[Exception]) -> None:
    given = signature(signal).parameters.values()
    shown = ", ".join(
        each.name if each.default is Parameter.empty else f"{each.name}={each.default!r}" for each in given
    )
    assert f"`{signal.__name__}({shown})`".replace("''", '""') in section("message.md", "Signals")


# the attribute


BODY, NOW = '{"order": 7}', 1_795_000_000.0
"""The body of the page's example, and a time at which it is valid."""


def examples(heading: str) -> dict[str, Any]:
    table = rows(section("tarry-attribute.md", heading))
    cells = {name: row[-1].strip("`") for name, row in table.items() if name != "key"}
    return {name: json.loads(cell) for name, cell in cells.items() if cell}


def test_every_key_of_the_attribute_is_on_the_page_and_no_other() -> None:
    def keys(heading: str) -> set[str]:
        return set(rows(section("tarry-attribute.md", heading)))

    assert keys("Keys") == {*ESSENTIAL, *FAILURE_KEYS}
    assert keys("`failure`") == {*FailureRecord._names} - {"history", "extra"}
    [entry] = next_history((), 1, "2026-11-21T08:21:40.112Z", "error", 600)
    assert keys("`history`") == set(entry)


def test_the_examples_of_the_attribute_can_be_read() -> None:
    whole = json.loads(re.findall(r"```json\n(.*?)```", (DOCS / "tarry-attribute.md").read_text("utf-8"), re.DOTALL)[0])
    assert read_envelope({"stringValue": dump(whole)}, BODY, NOW).fields == whole
    record = {**examples("Keys"), "failure": examples("`failure`"), "history": [examples("`history`")]}
    envelope = read_envelope({"stringValue": dump(record)}, BODY, NOW)
    assert (envelope.carried, envelope.hops, envelope.steps, envelope.notes) == (3, 1, {"slow": 2}, {"lane": "eu"})
    assert envelope.edited is not None
    assert envelope.failure is not None
    assert envelope.failure.history == (examples("`history`"),)


def test_the_limits_of_the_attribute_are_on_the_page() -> None:
    keys, failure = rows(section("tarry-attribute.md", "Keys")), rows(section("tarry-attribute.md", "`failure`"))
    assert all(f"0 to {MAX_COUNT:,}" in keys[name][1] for name in ("carried", "hops", "steps"))
    assert f"at most {MAX_NOTE_LENGTH} characters" in keys["notes"][1]
    assert f"at most {MAX_DUE_AHEAD_SECONDS // 86_400} days ahead" in keys["due"][1]
    assert f"at most {HISTORY_LENGTH}" in keys["history"][1]
    assert f"0 to {MAX_TOTAL:,}" in failure["attempts"][1]
    history = rows(section("tarry-attribute.md", "`history`"))
    assert f"at most {ERROR_IN_HISTORY_CHARACTERS} characters" in history["error"][1]
    traceback = FLOORS_BYTES[0]
    assert f"down to {traceback:,} and {traceback // 4} bytes" in section("tarry-attribute.md", "Size")


def test_the_pages_link_only_to_each_other() -> None:
    names = "settings message failure-steps check command messages metrics tarry-attribute permissions testing local"
    pages = {path.name: path.read_text("utf-8") for path in DOCS.glob("*.md")}
    assert pages.keys() == {f"{name}.md" for name in [*names.split(), "sqs-api", "api"]}
    assert {link for text in pages.values() for link in re.findall(r"\]\(([\w-]+\.md)", text)} <= pages.keys()


def test_the_public_names_are_those_of_the_list() -> None:
    """Programs elsewhere are written against them (DESIGN 3). The changelog says what is new, or replaces a name."""
    changed = unified_diff(FILE.read_text().splitlines(), list(lines()), "listed", "now", n=0, lineterm="")
    assert not list(changed), "python -m tests.public lists these changes, if they are meant"
