"""The console in a real browser: its overview, its keys, its widths, and its one-time address."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tarry.tools.console import overview
from tarry.tools.console.access import WatchedQueue
from tests.consoles import console_at, running
from tests.served import Served, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tarry.tools.console import server

    Opened = Callable[..., Page]

expect: Any = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
LONG = "a-queue-with-a-name-as-long-as-sqs-allows-which-is-eighty-characters-and-not-one"


@pytest.fixture(scope="module")
def sqs() -> Iterator[Served]:
    """Queues of which one has dead letters, and one does not exist."""
    with served() as found:
        for name in ("orders", "payments", LONG):
            dead = found.queue(f"{name[:76]}-dlq")
            arn = found.client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"][
                "QueueArn"
            ]
            found.queue(name, RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 5}))
        found.client.send_message(QueueUrl=found.queue("orders-dlq"), MessageBody="failed")
        yield found


@pytest.fixture(scope="module")
def console(sqs: Served) -> Iterator[server.Served]:
    queues = [WatchedQueue(sqs.queue(name), f"{name[:76]}-dlq") for name in ("payments", "orders", LONG)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "LOCAL_SECONDS", 0.5)
        with running(console_at(sqs.url, [*queues, WatchedQueue("gone")])) as found:
            yield found


def test_the_overview_names_first_what_needs_a_person_follows_the_queues_and_fits_any_width(
    console: server.Served, sqs: Served, opened: Opened
) -> None:
    page = opened(console.address())
    concerns = page.locator(".concerns li")
    expect(concerns.nth(0)).to_contain_text("gone The queue does not exist.")
    expect(concerns.nth(1)).to_contain_text("orders 1 dead letter waits for a decision.")
    expect(page.get_by_role("status").first).to_contain_text("2 of 4 queues need attention.")
    expect(page.locator("header")).to_contain_text("read-only")
    row = page.get_by_role("row", name="payments")
    row.get_by_role("link", name="payments").focus()
    sqs.client.send_message(QueueUrl=sqs.queue("payments"), MessageBody="new")
    expect(row.locator("td").first).to_contain_text("1")
    expect(row.get_by_role("link", name="payments")).to_be_focused()  # although the table was replaced
    sqs.client.purge_queue(QueueUrl=sqs.queue("payments"))
    expect(page.locator("[data-row]")).to_have_count(4)
    for width, height in ((360, 740), (1280, 800), (3840, 2160)):
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelector('.scroll').scrollWidth") <= width


def test_the_keyboard_is_enough_and_there_are_no_barriers_in_light_and_dark(
    console: server.Served, opened: Opened, no_barriers: Callable[..., None]
) -> None:
    page = opened(console.address())
    expect(page.locator(".concerns li")).to_have_count(2)  # the queues were read, so the rows keep their order
    page.keyboard.press("j")
    expect(page.locator(".here")).to_have_attribute("data-row", "gone")  # a row without a link
    read_at = page.locator(".hint").inner_text()
    expect(page.locator(".hint")).not_to_have_text(read_at)  # the table was replaced
    page.keyboard.press("j")
    expect(page.locator(".here")).to_have_attribute("data-row", "orders")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    no_barriers(page, "dark")
    page.keyboard.press("j")  # not of the page behind it
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator(".here")).to_have_attribute("data-row", "orders")
    page.keyboard.press("k")
    page.keyboard.press("j")
    no_barriers(page)
    page.keyboard.press("Enter")
    page.wait_for_url("**/dead-letters/orders-dlq")
    page.keyboard.press("g")
    page.wait_for_url(f"{console.url}/")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.goto(f"{console.url}/nothing")
    no_barriers(page, "light")


def test_an_address_works_from_a_page_of_another_site_and_leaves_no_token(
    console: server.Served, opened: Opened
) -> None:
    page = opened("data:text/html,<title>a page of another site</title>")
    page.evaluate("address => location.assign(address)", console.address())
    page.wait_for_url(f"{console.url}/")  # with its strict cookie
    page.reload()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert "token" not in page.url


def test_a_page_tells_that_its_console_was_stopped(sqs: Served, opened: Opened) -> None:
    with running(console_at(sqs.url, [WatchedQueue(sqs.queue("orders"))])) as console:
        page = opened(console.address())
        expect(page.locator("[data-row]")).to_have_count(1)
        expect(page.locator("#offline")).to_be_hidden()
    expect(page.locator("#offline")).to_be_visible()
