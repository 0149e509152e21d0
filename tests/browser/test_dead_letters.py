"""Dead letters in a real browser: scans, groups, the filter, selections, retries, edits, removals and the audit."""

from __future__ import annotations

import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tarry import failed
from tarry.tools.console.access import WatchedQueue
from tests.browser.conftest import LOOKS, MILLISECONDS
from tests.consoles import console_at, running
from tests.served import Served, served
from tests.unit.failed.dead_letters import envelope_of
from tests.wire import arn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tarry.tools.console import server

    Opened = Callable[..., Page]

expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
MANY = int(os.environ.get("TARRY_DEAD_LETTERS", "600"))
"""`make browser-test` has 10,000."""
DECLINED = [index for index in range(MANY) if index % 10 in (7, 8)]
OF_A_CUSTOMER = sum(index % 7 == 3 for index in DECLINED)
SCAN_MILLISECONDS = 180_000
"""The limit of a scan of so many. It takes a few seconds of a core."""
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"
FAILURES = (
    {"type": "orders.GatewayTimeout", "message": "no answer", "fingerprint": "9f2c61d0a4be"},
    {"type": "orders.CardDeclined", "message": "insufficient funds", "fingerprint": "51aa03b8c7d2"},
    {"type": "KeyError", "message": HOSTILE, "fingerprint": "aa10c2b3d4e5"},
)


def put(sqs: Served, queue: str, count: int, first: int = 0) -> None:
    """Put dead letters: of ten, seven timeouts, two declined cards, one hostile error."""

    def work() -> None:
        url = sqs.sqs.url(queue)
        for index in range(first, first + count):
            body = json.dumps({"id": index, "customer": f"c-{index % 7}"})
            failure = FAILURES[(index % 10 > 6) + (index % 10 == 9)]
            at = f"2026-11-21T{index // 600 % 24:02}:{index // 10 % 60:02}:00Z"
            envelope = envelope_of(
                body, f"order-{index:05}", origin=queue.removesuffix("-dlq"), failed_at=at, **failure
            )
            attributes = {"Tarry": {"DataType": "String", "StringValue": json.dumps(envelope)}}
            sqs.sqs.call("SendMessage", {"QueueUrl": url, "MessageBody": body, "MessageAttributes": attributes})

    sqs.on_the_loop(work)


def ids(sqs: Served, queue: str) -> list[int]:
    return sorted(sqs.on_the_loop(lambda: [json.loads(each.body)["id"] for each in sqs.sqs.peek(queue)]))


@pytest.fixture(scope="module")
def sqs() -> Iterator[Served]:
    with served() as found:
        for name in ("orders", "cards", "parcels"):
            found.queue(f"{name}-dlq")
            found.queue(
                name, RedrivePolicy=json.dumps({"deadLetterTargetArn": arn(f"{name}-dlq"), "maxReceiveCount": 5})
            )
        put(found, "orders-dlq", MANY)
        yield found


@pytest.fixture(scope="module")
def console(sqs: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Served]:
    queues = [WatchedQueue(name, f"{name}-dlq") for name in ("orders", "cards", "parcels")]
    audit = tmp_path_factory.mktemp("audit") / "audit.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tarry.failed.inspection.WAIT_SECONDS", 0)  # the model has all messages on one server
        with running(console_at(sqs.url, queues, can_write=True, audit_path=audit)) as found:
            yield found


def visit(page: Page, console: server.Served, path: str) -> None:
    page.goto(console.url + path)


def scan(page: Page, console: server.Served, queue: str) -> None:
    visit(page, console, f"/dead-letters/{queue}")
    page.keyboard.press("s")
    expect(page.locator("tbody tr[data-row]").first).to_be_visible()


def test_many_dead_letters_are_scanned_filtered_and_selected_by_keyboard_while_other_pages_answer(
    console: server.Served, sqs: Served, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, poll = threading.Event(), failed.Inspection.poll

    def held_up(self: failed.Inspection, *arguments: Any) -> Any:
        found = poll(self, *arguments)
        if self.scanned > MANY / 2:
            assert goes_on.wait(MILLISECONDS / 1000)
        return found

    monkeypatch.setattr(failed.Inspection, "poll", held_up)
    page = opened(console.address())
    visit(page, console, "/dead-letters/orders-dlq")
    expect(page.get_by_role("region", name="Scan")).to_contain_text(f"The queue has about {MANY:,} messages.")
    page.keyboard.press("s")
    expect(page.locator("progress")).to_be_visible()
    other = page.context.new_page()
    visit(other, console, "/jobs")  # answers while the scan runs
    expect(other.locator("tbody")).to_contain_text("Scan of orders-dlq")
    assert "running" in other.locator("tbody").inner_text()
    goes_on.set()
    rows = page.locator("tbody tr[data-row]")
    expect(rows).to_have_count(3, timeout=SCAN_MILLISECONDS)  # the page shows the groups by itself
    expect(rows.nth(0)).to_contain_text(f"{MANY * 7 // 10:,}")
    expect(rows.nth(2)).to_contain_text(r"KeyError: <script>alert(1)</script>\x1b[31m\u202e")
    expect(page.get_by_role("region", name="Scan")).to_contain_text(f"{MANY:,} dead letters")

    for key in "jj":
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    expect(page.get_by_label("Filters in force")).to_contain_text("fingerprint = 51aa03b8c7d2")
    expect(page.get_by_text(f"1 to 100 of {len(DECLINED):,} dead letters")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text(f"101 to {min(200, len(DECLINED))} of {len(DECLINED):,} dead letters")).to_be_visible()
    page.wait_for_load_state()  # the keys work

    page.keyboard.press("/")
    page.keyboard.type("bodi.x = 1")
    expect(page.locator("#filter-help")).to_contain_text(
        "at column 1: unknown field 'bodi'; the fields are type, reason"
    )
    expect(page.locator("#filter")).to_have_value("bodi.x = 1")  # nothing is lost
    page.keyboard.press("Enter")
    expect(page.locator("#filter-help")).to_contain_text("unknown field 'bodi'")
    expect(page.locator("#filter")).to_have_value("bodi.x = 1")
    page.locator("#filter").fill("body.cu")
    options = page.get_by_label("Suggestions").get_by_role("option")
    expect(options).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")  # takes it
    expect(page.locator("#filter")).to_have_value("body.customer ")
    expect(options.first).to_contain_text("body.customer =")
    page.keyboard.press("Escape")  # closes them
    expect(options).to_have_count(0)
    expect(page.locator("#filter")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#filter")).not_to_be_focused()
    page.locator("#filter").fill("body.customer = ")
    options.filter(has_text="body.customer = c-3").click()
    expect(page.get_by_label("Filters in force")).to_contain_text("body.customer = c-3")
    expect(page.get_by_text(f"1 to {min(100, OF_A_CUSTOMER)} of {OF_A_CUSTOMER} dead letters")).to_be_visible()

    for key in ("j", "x", "j", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("[data-selected-count]")).to_have_text("2")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 2 dead letters of orders-dlq that you selected")
    page.get_by_label("Rate").fill("0")
    expect(page.get_by_role("alert").last).to_contain_text("--rate must be a number of messages above 0")
    page.get_by_label("Rate").fill("50/s")
    expect(page.get_by_role("region", name="What will happen")).to_contain_text("2 messages are sent to orders")
    expect(page.get_by_role("button", name="Retry 2")).to_be_enabled()

    # A retry of all is stopped, and another page is told that it runs.
    visit(page, console, "/dead-letters/orders-dlq/retry?all=1")
    expect(page.get_by_role("region", name="What will happen")).to_contain_text(f"{MANY:,} messages are sent to orders")
    page.get_by_label("Rate").fill("20/s")
    expect(page.get_by_role("region", name="What will happen")).to_contain_text("At most 20/s")
    page.get_by_role("button", name=f"Retry {MANY:,}").click()
    expect(page.locator(".count-retried")).to_be_visible()
    visit(other, console, "/dead-letters/orders-dlq/remove?all=1")
    other.get_by_role("button", name=re.compile("^Remove ")).click()
    expect(other.locator(".problem")).to_contain_text("A retry runs on orders-dlq")
    other.get_by_role("button", name="Stop").click()
    expect(page.locator(".badge-warn")).to_have_text("stopped")
    left, sent = ids(sqs, "orders-dlq"), ids(sqs, "orders")
    assert sorted(left + sent) == list(range(MANY))
    assert 0 < len(sent) < 500
    assert sqs.on_the_loop(lambda: sqs.sqs.depth("orders-dlq").in_flight) == 0


def test_groups_are_tried_out_retried_with_canaries_edited_removed_and_audited(
    console: server.Served, sqs: Served, opened: Opened
) -> None:
    put(sqs, "cards-dlq", 40)
    page = opened(console.address())
    scan(page, console, "cards-dlq")
    page.keyboard.press("j")
    page.keyboard.press("r")
    happens = page.get_by_role("region", name="What will happen")
    expect(happens).to_contain_text("28 messages are sent to cards, and then deleted from cards-dlq.")
    page.get_by_label("Canaries first").fill("2")
    page.get_by_label("Watch them for").fill("1s")
    expect(happens).to_contain_text("2 dead letters are sent first and watched.")
    expect(happens).to_contain_text("--canary 2 --within 1s")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator(".badge-good")).to_have_text("done")
    expect(page.get_by_role("region", name="Job")).to_contain_text("28 would be retried")
    assert ids(sqs, "cards") == []
    page.get_by_role("button", name="Retry 28 now").click()  # with the same canaries
    expect(page.locator(".badge-good")).to_have_text("done")
    assert len(ids(sqs, "cards")) == 28

    visit(page, console, "/dead-letters/cards-dlq/list?where=type+%3D+orders.CardDeclined")
    page.keyboard.press("j")
    page.keyboard.press("e")
    page.get_by_label("Body").fill('{"id": 1000')
    page.get_by_role("button", name="Send the edited message").click()
    expect(page.get_by_role("alert").last).to_contain_text("the body was JSON, the edited body is not")
    page.get_by_label("Body").fill('{"id": 1000}')
    page.get_by_role("button", name="Send the edited message").click()
    expect(page.locator(".badge-good")).to_have_text("done")
    assert 1000 in ids(sqs, "cards")

    visit(page, console, "/dead-letters/cards-dlq/list?where=type+%3D+KeyError")
    for key in "jxr":
        page.keyboard.press(key)
    page.get_by_role("button", name="Retry 1").click()
    expect(page.locator(".count-retried")).to_have_text("1")
    expect(page.locator(".badge-good")).to_have_text("done")

    visit(page, console, "/dead-letters/cards-dlq")
    page.keyboard.press("j")
    page.keyboard.press("d")
    expect(happens).to_contain_text("7 messages of cards-dlq are written to a new archive")
    page.get_by_role("button", name="Remove 7").click()
    expect(page.get_by_role("region", name="Job")).to_contain_text("To restore them: tarry failed restore")
    assert len(ids(sqs, "cards-dlq")) == 3
    page.get_by_role("link", name="Audit").first.click()
    outcomes = page.locator("tbody tr [data-label=Outcome]")
    expect(outcomes.first).to_have_text("deleted 7")
    last = [" ".join(each.split()) for each in outcomes.all_inner_texts()[:4]]
    assert last == ["deleted 7", "retried 1", "retried 1, edited 1", "retried 28"]
    page.get_by_text("Details").first.click()
    expect(page.locator("tbody tr").first).to_contain_text("tarry console")


def test_the_pages_of_dead_letters_have_no_barriers_and_fit_any_width(
    console: server.Served, sqs: Served, opened: Opened, no_barriers: Callable[..., None]
) -> None:
    put(sqs, "parcels-dlq", 10)
    page = opened(console.address())
    scan(page, console, "parcels-dlq")
    queue = "/dead-letters/parcels-dlq"
    visit(page, console, f"{queue}/list")
    edit = page.get_by_role("link", name="Edit").first.get_attribute("href") or ""
    both = (queue, f"{queue}/list?where=reason+%3D+exhausted&where=x", f"{queue}/retry?all=1", "/jobs/1")
    for path in (*both, edit, "/dead-letters", f"{queue}/remove?all=1", "/jobs", "/audit"):
        visit(page, console, path)
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, (path, width)
            if width == 360 and path in both:
                no_barriers(page, "dark", rules=LOOKS)
        no_barriers(page, "light")
