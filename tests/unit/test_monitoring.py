"""docs/guides/monitoring.md: its queries use fields that log lines have, and its facts are those of the code."""

import json
import re
from collections.abc import Iterator

import pytest

from tarry.observe.logger_keys import KEYS
from tarry.observe.metrics import METRICS
from tarry.settings import SETTINGS
from tests.pages import ROOT, Page

GUIDE = Page(ROOT / "docs" / "guides" / "monitoring.md")
MESSAGES = (ROOT / "docs" / "reference" / "messages.md").read_text("utf-8")
QUERIES = [block.text for block in GUIDE.blocks if block.comment == "query"]

OF_LAMBDA = {"@timestamp", "level"}
"""Fields of Logs Insights, and of Lambda's JSON format (AWS: Logs and metrics of Python functions)."""
KEYWORDS = {*"and or not in as by asc desc like".split()}
COMMANDS = {*"fields display filter stats sort limit".split()}
FUNCTIONS = {*"count max min sum avg pct latest earliest bin ispresent".split()}


def words(query: str) -> Iterator[str]:
    """Yield the fields, aliases and functions that a query uses, without keywords and values."""
    bare = re.sub(r'"[^"]*"', "", query)
    for command in bare.split("|"):
        name, *rest = re.findall(r"[@A-Za-z_][\w.]*|\b\d\w*", command)
        assert name in COMMANDS, command
        yield from (each for each in rest if each not in KEYWORDS and not each[0].isdigit())


def fields_of_lines() -> set[str]:
    table = MESSAGES[MESSAGES.index("| field | value |") : MESSAGES.index("An error is logged once")]
    named = set(re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines() if "|" in row)))
    return named | {*KEYS} | {f"{metric.name}.0" for metric in METRICS}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_uses_only_fields_of_log_lines_and_names_that_it_makes(query: str) -> None:
    made = set(re.findall(r"\bas (\w+)", query))
    assert {*words(query)} - made - FUNCTIONS - OF_LAMBDA - fields_of_lines() == set()


def test_the_queries_name_events_that_exist_and_no_unknown_word_passes_the_test() -> None:
    events = set(re.findall(r"^#### `(\w+)`$", MESSAGES, re.MULTILINE))  # a test generates the page from the code
    named = {event for query in QUERIES for event in re.findall(r'event = "(\w+)"', query)}
    assert {"dead_lettered", "waiting_retry", "done_before"} <= named <= events
    assert "mesage_id" in set(words("filter event = 1 | stats count(*) by mesage_id")) - fields_of_lines()


def test_the_guide_names_metrics_and_settings_that_exist() -> None:
    metrics = {each.name for each in METRICS}
    section = GUIDE.text[GUIDE.text.index("## Metrics") : GUIDE.text.index("## The `on_outcome` hook")]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("| "))
    assert set(re.findall(r"`(\w+)`", rows)) < metrics
    assert "on_outcome" in SETTINGS
    assert f"at most {len(metrics)} metrics" in GUIDE.text


def test_a_line_of_lambda_has_the_fields_at_its_top_level(caplog: pytest.LogCaptureFixture) -> None:
    """Logs Insights names a field by its path in the line."""
    json_formatter = pytest.importorskip("awslambdaric.lambda_runtime_log_utils").JsonFormatter  # for Linux only
    from tarry.observe.logs import Log, LogOptions

    Log("orders", LogOptions()).problem("done_before", "The message was already processed.")
    line = json.loads(json_formatter().format(caplog.records[-1]))
    assert (line["event"], line["consumer"], line["level"]) == ("done_before", "orders", "ERROR")
    assert {"timestamp", "level", "message"} <= {*line}
