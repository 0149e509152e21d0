"""Searching with CloudWatch Logs Insights: waiting, throttles, queries that end early, Ctrl-C, and what it costs."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.tools.story.searching import MOST_BUSY, MOST_RESULTS, LogGroup, LogSearch, batches, query_for


def error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "StartQuery")


class FakeLogs:
    """CloudWatch Logs with prepared answers; an exception is raised."""

    def __init__(self, *answers: Any, starts: tuple[Any, ...] = ()) -> None:
        self._answers = list(answers)
        self._starts = list(starts)
        self.started: list[dict[str, Any]] = []
        self.stopped: list[str] = []

    def start_query(self, **parameters: Any) -> dict[str, str]:
        if self._starts:
            raise self._starts.pop(0)
        self.started.append(parameters)
        return {"queryId": f"q{len(self.started)}"}

    def get_query_results(self, queryId: str) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop_query(self, queryId: str) -> None:
        self.stopped.append(queryId)
        raise error("InvalidParameterException")  # it has ended


def answer(status: str, *messages: str, scanned: float = 0) -> dict[str, Any]:
    rows = [
        [
            {"field": "@timestamp", "value": "2026-11-22 12:00:00.250"},
            {"field": "@message", "value": message},
            {"field": "@log", "value": "123456789012:/aws/lambda/orders"},
            {"field": "@ptr", "value": "x"},
        ]
        for message in messages
    ]
    return {"status": status, "results": rows, "statistics": {"bytesScanned": scanned}}


class Search:
    """A search of some groups with these answers."""

    def __init__(self, logs: FakeLogs, groups: int = 1) -> None:
        self.slept: list[float] = []
        self.progress: list[str] = []
        names = batches(LogGroup(f"f{number}", log_class="RARE" if number == 7 else "A") for number in range(groups))
        self.search = LogSearch(logs, names, 1_000.9, 2_000.1, self.progress.append, self.slept.append)

    def run(self) -> LogSearch:
        self.search.run("5f3a2b1c")
        return self.search


def test_a_query_is_waited_for_and_its_lines_and_cost_are_reported() -> None:
    logs = FakeLogs(
        answer("Scheduled"),
        answer("Running", "partial", scanned=5e8),
        error("ThrottlingException"),
        answer("Complete", "a", "b", scanned=2.5e10),
    )
    run = Search(logs)
    found = run.run().found
    assert [(each.at, each.text, each.group) for each in found.entries] == [
        (1_795_348_800.25, "a", "/aws/lambda/orders"),
        (1_795_348_800.25, "b", "/aws/lambda/orders"),
    ]
    assert found.cost == "Scanned 25.00 GB of logs ($0.12 at $0.005 a GB)."
    assert found.problems == []
    assert run.slept == [0.5, 1.0, 2.0, 2.0]
    assert run.progress[1] == "running, 0.50 GB scanned"
    [started] = logs.started
    assert (started["startTime"], started["endTime"], started["limit"]) == (1_000, 2_001, MOST_RESULTS)
    assert logs.stopped == []


def test_a_query_has_at_most_50_groups_of_one_class() -> None:
    logs = FakeLogs(*[answer("Complete", "a", scanned=1e6) for _ in range(4)])
    found = Search(logs, groups=102).run().found
    assert [len(each["logGroupNames"]) for each in logs.started] == [50, 50, 1, 1]
    assert len(found.entries) == 4
    assert found.cost == "Scanned 4.00 MB of logs (less than $0.01 at $0.005 a GB)."


@pytest.mark.parametrize("status", ["Timeout", "Failed", "Cancelled"])
def test_what_a_query_found_before_it_ended_early_is_kept_and_called_incomplete(status: str) -> None:
    found = Search(FakeLogs(answer(status, "a"))).run().found
    assert len(found.entries) == 1
    assert found.problems == [
        f"CloudWatch ended the query early ({status}), so lines may be missing: search less (--since, --group)"
    ]


def test_more_lines_than_a_query_returns_are_called_incomplete() -> None:
    found = Search(FakeLogs(answer("Complete", *["a"] * MOST_RESULTS))).run().found
    assert "more than 10,000 lines" in found.problems[0]


def test_a_query_is_started_again_while_too_many_run_and_given_up_in_the_end() -> None:
    busy = tuple(error("LimitExceededException") for _ in range(MOST_BUSY))
    assert Search(FakeLogs(answer("Complete", "a"), starts=busy)).run().found.entries
    with pytest.raises(ClientError, match="LimitExceeded"):
        Search(FakeLogs(starts=(*busy, busy[0]))).run()
    denied = FakeLogs(starts=(error("AccessDeniedException"),))
    with pytest.raises(ClientError, match="AccessDenied"):
        Search(denied).run()


def test_a_query_that_is_interrupted_is_stopped() -> None:
    for raised in (KeyboardInterrupt(), error("AccessDeniedException")):
        logs = FakeLogs(answer("Running"), raised)
        with pytest.raises(type(raised)):
            Search(logs).run()
        assert logs.stopped == ["q1"]


def test_no_text_ends_the_query_that_it_is_in() -> None:
    assert 'like "a\\"| fields \\\\" | sort' in query_for('a"| fields \\')
