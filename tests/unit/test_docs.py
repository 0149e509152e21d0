"""The tests, modules and packages that the docs name exist. For links and code, see tests/acceptance/test_docs.py."""

import re
from pathlib import Path

import pytest

from tarry.tools.common.strip import NOT_DEPLOYED
from tests.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """Return the names of all tests."""
    texts = (path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return {name for text in texts for name in re.findall(r"^ *(?:async )?def (test_\w+)\(", text, re.MULTILINE)}


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_test_that_a_page_names_exists(page: Path, tests: set[str]) -> None:
    named = set(re.findall(r"`(?:\S+::)?(test_\w+)`", page.read_text()))
    assert named - tests == set()


def test_each_of_the_thirty_questions_is_answered_by_pages_two_clicks_from_the_readme() -> None:
    """The README links to the list of all pages, which links to every page that answers a question."""
    page, overview = (Page(ROOT / "docs" / name) for name in ("questions.md", "README.md"))
    rows = re.findall(r"^\| (?!question \||\*\*)(.+?) \| (.+) \|$", page.text, re.MULTILINE)
    assert len({question for question, _ in rows}) == 30
    first_click = {link for _, link in Page(ROOT / "README.md").links()}
    assert "docs/README.md" in first_click
    second_click = {link.partition("#")[0] for _, link in overview.links()}
    for question, answer in rows:
        links = re.findall(r"\]\(([^)]+)\)", answer)
        assert links, question
        assert [link for link in links if page.broken(link)] == [], question
        assert {link.partition("#")[0] for link in links} - second_click == set(), question


CRASHES = {
    1: [
        "test_after_a_crash_the_batch_is_redelivered_without_messages_that_were_acknowledged_eagerly",
    ],
    2: [
        "test_only_with_isolation_messages_beside_a_crash_stay_done",
        "test_a_poison_message_is_dead_lettered_alone",
        "test_a_message_whose_handler_loops_or_ends_its_process_is_dead_lettered_alone",  # with real processes
    ],
    3: [
        "test_a_handler_is_interrupted_at_its_timeout_and_has_failed",
        "test_the_response_comes_before_the_deadline_and_the_process_continues",
    ],
    4: [  # the tests of rows 1 and 2 have both endings; this one has a real process
        "test_a_message_whose_handler_loops_or_ends_its_process_is_dead_lettered_alone",
    ],
    5: [
        "test_an_abandoned_thread_is_ignored_shows_its_stack_and_occupies_its_worker_until_it_ends",
        "test_if_all_places_or_a_fifo_group_are_taken_the_process_ends_after_the_messages_are_settled",
    ],
    6: [
        "test_messages_without_time_are_released_and_a_warning_names_the_batch_size_that_fits",
        "test_redelivered_messages_with_the_fewest_deliveries_are_released_first",
        "test_with_time_for_half_of_each_batch_every_message_runs",
    ],
    7: ["test_an_accepted_delay_holds_after_a_crash"],
    8: ["test_a_batch_that_lambda_throttles_is_redelivered_without_a_run"],
    9: [
        "test_a_message_whose_eager_delete_fails_is_left_to_lambda",
        "test_isolation_sends_no_more_deletes_after_sqs_has_not_answered_and_leaves_those_messages_to_lambda",
    ],
    10: ["test_a_delay_holds_if_its_answer_is_lost_and_is_the_visibility_timeout_if_it_is_throttled"],
    11: ["test_a_delay_holds_if_its_answer_is_lost_and_is_the_visibility_timeout_if_it_is_throttled"],
    12: ["test_a_dead_letter_is_tried_again_after_a_throttle_and_sent_twice_if_its_answer_is_lost"],
    13: ["test_a_dead_letter_is_tried_again_after_a_throttle_and_sent_twice_if_its_answer_is_lost"],
}
"""The tests that show each row of the table in docs/guides/crashes.md."""


def test_each_row_of_the_table_of_crashes_has_its_tests(tests: set[str]) -> None:
    text = (ROOT / "docs" / "guides" / "crashes.md").read_text()
    rows = [int(number) for number in re.findall(r"^\| \*\*(\d+)\. ", text, re.MULTILINE)]
    assert rows == list(CRASHES) == list(range(1, len(rows) + 1))
    assert all(CRASHES.values())
    assert {name for named in CRASHES.values() for name in named} - tests == set()


def test_the_page_on_the_architecture_names_every_package_and_no_file_that_does_not_exist() -> None:
    """Of the runtime it names every module, so that a reader finds the one to change."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "layers" / "tarry" / "python" / "tarry"
    files = {path.name for path in package.rglob("*.py")} | {
        str(path.relative_to(package)) for path in package.rglob("*.py")
    }
    assert set(re.findall(r"`(?!tests/|docs/)([\w/]+\.py)`", text)) - files == set()
    subpackages = {path.parent.name for path in package.glob("*/__init__.py")}
    assert {name for name in subpackages if f"{name}/" not in text} == set()
    tools = {path.parent.name for path in package.glob("tools/*/__init__.py")}
    assert {f"tools/{name}/" for name in tools if f"`tools/{name}/`" not in text} == set()
    runtime = {name for name in files if name.partition("/")[0] not in NOT_DEPLOYED and "/" in name}
    runtime |= {path.name for path in package.glob("*.py")}
    assert {name for name in runtime if not name.endswith("__init__.py") and f"`{name}`" not in text} == set()
