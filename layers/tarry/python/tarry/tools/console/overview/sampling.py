"""Reading all queues again and again, for the overview and its charts."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tarry.failed.queue_names import queue_name
from tarry.tools.console import pages
from tarry.tools.console.overview.metrics import last_hour
from tarry.tools.console.overview.pauses import paused_functions
from tarry.tools.console.overview.readings import QueueHistory, QueueReading, read_queue
from tarry.tools.console.overview.rows import OverviewRows, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tarry.tools.console.access import Console

TOPIC, SUMMARY_TOPIC = "overview", "overview-summary"
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
        self._shown: dict[str, str] = {}
        self._rows = self._known()

    def rows(self) -> OverviewRows:
        """Return the overview as of the last reading."""
        return self._rows

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
            self._rows = self._known()
            self._publish()
            await self._pause()

    def _known(self) -> OverviewRows:
        return rows_of(
            self._console.queues,
            self._histories,
            time.time(),
            self._note,
            self._console.place_options,
            self._console.latest_errors(),
        )

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
        await asyncio.gather(*(self._read_one(each, served) for each in self._histories))
        if self._console.account.is_aws and time.time() - self._metrics_at >= METRIC_SECONDS:
            self._metrics_at = time.time()
            await asyncio.gather(self._read_metrics(), self._read_pauses())
        elif served:
            await self._read_pauses()

    async def _read_one(self, address: str, served: Mapping[str, Mapping[str, Any]]) -> None:
        history = self._histories[address]
        async with self._slots:
            try:
                reading = await self._console.in_thread(self._reading, address, served.get(queue_name(address)))
            except Exception as error:
                if (problem := pages.explained(error)) is None:
                    raise
                history.problem = problem
                return
        history.problem, history.is_gone = "", reading is None
        if reading is not None:
            history.add(reading)

    async def _read_metrics(self) -> None:
        names = [queue_name(each) for each in self._histories]
        try:
            found = await self._console.in_thread(self._metrics, names)
        except Exception as error:
            if (problem := pages.explained(error)) is None:
                raise
            self._note = f"CloudWatch does not tell ages and rates, so these are not known. {problem}"
            return
        self._note = ""
        for address, history in self._histories.items():
            history.metrics = found.get(queue_name(address), {})

    async def _read_pauses(self) -> None:
        try:
            found = await self._console.in_thread(self._pauses)
        except Exception as error:
            if pages.explained(error) is None:
                raise
            return  # without the permission, it is not known
        for address, history in self._histories.items():
            history.paused = found.get(queue_name(address), ())

    # in a thread

    def _reading(self, address: str, served: Mapping[str, Any] | None) -> QueueReading | None:
        return read_queue(address, self._console.client("sqs"), time.time(), served)

    def _served(self) -> dict[str, Mapping[str, Any]]:
        from tarry.tools.local.aws.served import description, queues_in

        about = description((self._console.account.endpoint or "").rstrip("/"))
        if isinstance(errors := about.get("latest_errors"), dict):
            self._console.known_errors = {name: str(why) for name, why in errors.items()}
        return queues_in(about)

    def _metrics(self, names: list[str]) -> dict[str, Any]:
        return last_hour(names, self._console.client("cloudwatch"), time.time())

    def _pauses(self) -> Mapping[str, tuple[str, ...]]:
        return paused_functions(self._console.client("lambda"), self._console.place.account)

    # pages

    def _publish(self) -> None:
        """Send the overview, where it has changed, to the pages that show it, and to one that is about to."""
        found = self._rows
        self._publish_part(TOPIC, pages.fragment("overview/queues.html", overview=found))
        self._publish_part(SUMMARY_TOPIC, pages.fragment("overview/summary.html", overview=found))

    def _publish_part(self, topic: str, html: str) -> None:
        if self._shown.get(topic) != html:
            self._shown[topic] = html
            self._console.live.publish(topic, html)
