"""The overview: queues with their consumers, and what needs attention, read again and again with their charts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from tarry.failed.queue_names import listed, queue_name
from tarry.guard.operations import setting_of, suspensions
from tarry.support.values import queue_arn
from tarry.tools.console import pages
from tarry.tools.console.access import CONSOLE, Console
from tarry.tools.console.overview.rows import OverviewRows, QueueHistory, QueueReading, Series, read_queue, rows_of

PERIOD_SECONDS = 60
MAX_QUERIES = 500
"""The most metrics of a GetMetricData request."""


METRICS = {
    "ready": ("ApproximateNumberOfMessagesVisible", "Maximum"),
    "age": ("ApproximateAgeOfOldestMessage", "Maximum"),
    "arrived": ("NumberOfMessagesSent", "Sum"),
    "left": ("NumberOfMessagesDeleted", "Sum"),
}
"""The metrics of SQS, each with the statistic that makes one value of those of a minute."""


def last_hour(queues: Iterable[str], cloudwatch: Any, now: float) -> dict[str, dict[str, Series]]:
    """Return the series of the last hour, by the name of the queue. Raises `ClientError`."""
    asked = [(queue, key) for queue in queues for key in METRICS]
    end = datetime.fromtimestamp(now, UTC)
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for begin in range(0, len(asked), MAX_QUERIES):
        part = asked[begin : begin + MAX_QUERIES]
        queries = [_query(f"m{number}", queue, *METRICS[key]) for number, (queue, key) in enumerate(part)]
        pages = cloudwatch.get_paginator("get_metric_data").paginate(
            MetricDataQueries=queries, StartTime=end - timedelta(hours=1), EndTime=end, ScanBy="TimestampAscending"
        )
        for result in (each for page in pages for each in page["MetricDataResults"]):
            queue, key = part[int(result["Id"][1:])]
            values = zip(result["Timestamps"], result["Values"], strict=True)
            # A later page may have more values of the same series.
            found.setdefault(queue, {}).setdefault(key, []).extend((at.timestamp(), float(each)) for at, each in values)
    return {queue: {key: tuple(sorted(each)) for key, each in series.items()} for queue, series in found.items()}


def _query(name: str, queue: str, metric: str, statistic: str) -> dict[str, Any]:
    of_queue = [{"Name": "QueueName", "Value": queue}]
    what = {"Namespace": "AWS/SQS", "MetricName": metric, "Dimensions": of_queue}
    return {"Id": name, "MetricStat": {"Metric": what, "Period": PERIOD_SECONDS, "Stat": statistic}}


def interrupted(client: Any, account: str | None) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, str]]:
    """Return the paused functions, and what the outage guard does, by queue of an account or of all.

    Raises `ClientError`.
    """
    found: dict[str, tuple[str, ...]] = {}
    mappings = []
    for each in listed(client, "list_event_source_mappings", "EventSourceMappings"):
        queue = queue_arn(each.get("EventSourceArn"))
        if queue.name and account in (None, queue.account):
            mappings.append(each)
            if not setting_of(each).is_enabled:
                function = str(each["FunctionArn"]).split(":", 6)[6]
                found[queue.name] = (*found.get(queue.name, ()), function)
    return found, suspensions(mappings, client)


TOPIC = "overview"
PARTS = {TOPIC: "overview/queues.html", "overview-summary": "overview/summary.html"}
"""The live parts of the page: the topic and the template of each."""
AT_ONCE = 4
"""The most requests at once, fewer than the threads of pages."""
LOCAL_SECONDS, AWS_SECONDS = 2.0, 10.0
"""The pause between readings while a page shows the overview. Each reading is a request for each queue."""
UNSEEN_SECONDS = 60.0
"""The pause between readings while no page does: the charts still need them."""
METRIC_SECONDS = 60.0
"""The pause between requests to CloudWatch, which are made only while a page shows the overview."""
UNKNOWN_AGES = "This SQS does not tell the ages of messages and how many arrive, so these are not known."

_log = logging.getLogger(__name__)


class Sampler:
    """The readings of all queues, in a task of their own."""

    def __init__(self, console: Console) -> None:
        self._console = console
        addresses = [each for queue in console.queues for each in (queue.address, queue.dead_letters) if each]
        self._histories = {address: QueueHistory() for address in addresses}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._note = "" if console.account.is_aws else UNKNOWN_AGES
        self._metrics_at = 0.0
        self._wake = asyncio.Event()
        self.rows = self._known()
        """The overview as of the last reading."""

    def reading(self, address: str) -> QueueReading | None:
        """Return the last reading of a queue; None if there is none, or the last one failed."""
        history = self._histories.get(address)
        return None if history is None or history.problem or history.is_gone else history.last

    def look(self) -> None:
        """Read the queues soon: a page shows them now."""
        self._wake.set()

    async def run(self) -> None:
        """Read the queues until cancelled."""
        while True:
            try:
                await self._read()
            except Exception:  # noqa: BLE001 a bug, which is logged; the console goes on
                _log.exception("the overview could not be read")
            self.rows = self._known()
            for topic, template in PARTS.items():  # also for a page that is about to show it
                self._console.live.publish(topic, pages.fragment(template, overview=self.rows))
            await self._pause()

    def _known(self) -> OverviewRows:
        console, errors = self._console, self._console.latest_errors()
        return rows_of(console.queues, self._histories, time.time(), self._note, console.place_options, errors)

    async def _pause(self) -> None:
        step = AWS_SECONDS if self._console.account.is_aws else LOCAL_SECONDS
        began = time.monotonic()
        while time.monotonic() - began < UNSEEN_SECONDS:
            with suppress(TimeoutError):
                async with asyncio.timeout(step):
                    await self._wake.wait()
            if self._wake.is_set() or self._console.live.is_watched(TOPIC):
                break
        self._wake.clear()

    async def _read(self) -> None:
        served = {} if self._console.account.is_aws else await self._console.in_thread(self._served)
        if served:
            self._note = ""
        await asyncio.gather(*(self._read_one(each, served.get(queue_name(each))) for each in self._histories))
        if self._console.account.is_aws and time.time() - self._metrics_at >= METRIC_SECONDS:
            self._metrics_at = time.time()
            await asyncio.gather(self._read_metrics(), self._read_pauses())
        elif served:
            await self._read_pauses()

    async def _read_one(self, address: str, served: Mapping[str, Any] | None) -> None:
        history, console = self._histories[address], self._console
        async with self._slots:
            found = pages.asked(console, lambda: read_queue(address, console.client("sqs"), time.time(), served))
            reading, history.problem = await found
        if not history.problem:
            history.is_gone = reading is None
        if reading is not None:
            history.add(reading)

    async def _read_metrics(self) -> None:
        names, console = [queue_name(each) for each in self._histories], self._console
        found, why = await pages.asked(console, lambda: last_hour(names, console.client("cloudwatch"), time.time()))
        self._note = f"CloudWatch does not tell ages and rates, so these are not known. {why}" if why else ""
        if found is not None:
            for address, history in self._histories.items():
                history.metrics = found.get(queue_name(address), {})

    async def _read_pauses(self) -> None:
        console = self._console
        found, _ = await pages.asked(console, lambda: interrupted(console.client("lambda"), console.place.account))
        if found is not None:  # without the permission, it is not known
            paused, guard = found
            for address, history in self._histories.items():
                history.paused = paused.get(queue_name(address), ())
                history.guard = guard.get(queue_name(address), "")

    def _served(self) -> dict[str, Mapping[str, Any]]:
        from tarry.tools.local.aws.client import description, queues_in

        about = description((self._console.account.endpoint or "").rstrip("/"))
        if isinstance(errors := about.get("latest_errors"), dict):
            self._console.known_errors = {name: str(why) for name, why in errors.items()}
        return queues_in(about)


SAMPLER = web.AppKey("sampler", Sampler)


def routes(app: web.Application) -> None:
    app.router.add_get("/", _page)
    app.cleanup_ctx.append(_sampling)


async def _page(request: web.Request) -> web.Response:
    """Show what is known about the queues, without a request to SQS; the next reading comes by itself."""
    sampler = request.app[SAMPLER]
    sampler.look()
    return pages.render(request, "overview/page.html", overview=sampler.rows)


async def _sampling(app: web.Application) -> AsyncIterator[None]:
    app[SAMPLER] = sampler = Sampler(app[CONSOLE])
    task = asyncio.create_task(sampler.run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
