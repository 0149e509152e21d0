"""Searching log groups with CloudWatch Logs Insights: one query for up to 50 groups, with its cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tarry.tools.story.lines import LogEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_RESULTS = 10_000
"""The results of one query; Insights returns no more."""
DOLLARS_PER_GB = 0.005
"""The price of a scan in us-east-1."""
GB = 1_000_000_000
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 2.0
BUSY_SECONDS = 5.0
MOST_BUSY = 12
"""How often a query is started again while too many others run in the account: a minute."""
UNDER_WAY = frozenset({"Scheduled", "Running", "Unknown"})
BUSY = frozenset({"LimitExceededException", "ThrottlingException", "ServiceUnavailableException"})


@dataclass
class SearchResult:
    """The lines that a search has found, and what it cost. ``problems`` say why lines may be missing."""

    entries: list[LogEntry] = field(default_factory=list)
    bytes_scanned: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def cost(self) -> str:
        """How much was scanned, and its price."""
        gigabytes = self.bytes_scanned / GB
        shown = f"{gigabytes:,.2f} GB" if gigabytes >= 0.01 else f"{self.bytes_scanned / 1_000_000:,.2f} MB"
        dollars = gigabytes * DOLLARS_PER_GB
        price = f"${dollars:.2f}" if dollars >= 0.01 else "less than $0.01"
        return f"Scanned {shown} of logs ({price} at $0.005 a GB)."


class LogSearch:
    """Searches in log groups, between two times in epoch seconds.

    ``groups`` are the log groups of each query. ``progress`` is called with a text while a query runs. A query that is
    left by an exception, such as Ctrl-C, is stopped, so that it scans no further.
    """

    def __init__(
        self,
        logs: Any,
        groups: Sequence[Sequence[str]],
        since: float,
        until: float,
        progress: Callable[[str], None] = lambda text: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._logs = logs
        self._groups = groups
        self._since = since
        self._until = until
        self._progress = progress
        self._sleep = sleep
        self.found = SearchResult()
        """All that was found so far."""

    def run(self, text: str) -> None:
        """Find all lines that have a text.

        Raises:
            botocore.exceptions.ClientError: AWS refuses a query.
        """
        self.run_query(query_for(text))

    def run_query(self, query: str) -> None:
        """Find all lines of a query. Raises the same."""
        for groups in self._groups:
            self._run(groups, query)

    def _run(self, groups: Sequence[str], query: str) -> None:
        query_id = self._start(groups, query)
        answer: Mapping[str, Any] = {"status": "Scheduled"}
        wait = FIRST_WAIT_SECONDS
        try:
            while answer["status"] in UNDER_WAY:
                self._sleep(wait)
                wait = min(LONGEST_WAIT_SECONDS, wait * 2)
                answer = self._answer(query_id) or answer
                scanned = float((answer.get("statistics") or {}).get("bytesScanned") or 0)
                self._progress(f"{str(answer['status']).lower()}, {scanned / GB:,.2f} GB scanned")
        except BaseException:
            self._stop(query_id)
            raise
        self._take(answer)

    def _start(self, groups: Sequence[str], query: str) -> str:
        from botocore.exceptions import ClientError

        busy = 0
        while True:
            try:
                started = self._logs.start_query(
                    logGroupNames=list(groups),
                    startTime=int(self._since),
                    endTime=int(self._until) + 1,
                    queryString=query,
                    limit=MOST_RESULTS,
                )
                return str(started["queryId"])
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") not in BUSY or busy == MOST_BUSY:
                    raise
            busy += 1
            self._progress("waiting: too many queries run in this account")
            self._sleep(BUSY_SECONDS)

    def _answer(self, query_id: str) -> Mapping[str, Any] | None:
        """Return the state of a query; None if AWS is too busy to tell."""
        from botocore.exceptions import ClientError

        try:
            answer: Mapping[str, Any] = self._logs.get_query_results(queryId=query_id)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in BUSY:
                raise
            return None
        return answer

    def _stop(self, query_id: str) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._logs.stop_query(queryId=query_id)
        except (BotoCoreError, ClientError):
            return  # it has ended, or ends by itself

    def _take(self, answer: Mapping[str, Any]) -> None:
        found, results = self.found, answer.get("results") or []
        found.entries += [_entry({each["field"]: each.get("value", "") for each in row}) for row in results]
        found.bytes_scanned += float((answer.get("statistics") or {}).get("bytesScanned") or 0)
        if answer["status"] != "Complete":
            found.problems.append(
                f"CloudWatch ended the query early ({answer['status']}), so lines may be missing: "
                "search less (--since, --group)"
            )
        if len(results) >= MOST_RESULTS:
            found.problems.append(
                f"the query found more than {MOST_RESULTS:,} lines, the later ones are missing: search less "
                "(--since, --group)"
            )


def query_for(text: str) -> str:
    """Return the query for the lines that have a text."""
    literal = text.replace("\\", "\\\\").replace('"', '\\"')
    return (
        f'fields @timestamp, @message, @log, @requestId | filter @message like "{literal}" | sort @timestamp asc '
        f"| limit {MOST_RESULTS}"
    )


def _entry(fields: Mapping[str, str]) -> LogEntry:
    group = fields.get("@log", "").partition(":")
    return LogEntry(
        _seconds(fields.get("@timestamp", "")),
        fields.get("@message", ""),
        group[2] or group[0],
        fields.get("@requestId", ""),
    )


def _seconds(text: str) -> float:
    """Return a time of Insights (UTC), or epoch milliseconds, as epoch seconds."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        pass
    try:
        return float(text) / 1000
    except ValueError:
        return 0.0
