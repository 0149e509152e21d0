"""The guard of a template in `tarry local`."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from .conftest import Project

GUARD = """
  Guard:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: plain
      Environment:
        Variables:
          GUARDED: !Sub >-
            [{"consumer": "entries", "queue": "${Entries.QueueName}", "mapping": "${OrderedEntries}"},
            {"consumer": "jobs", "queue": "jobs", "mapping": "${PlainJobs}"}]
      Events: {EveryMinute: {Type: ScheduleV2, Properties: {ScheduleExpression: rate(1 minute)}}}
"""


def metric(name: str, statistic: str) -> dict[str, Any]:
    dimensions = [{"Name": "consumer", "Value": "handler"}, {"Name": "queue", "Value": "Entries.fifo"}]
    found = {"Namespace": "shop", "MetricName": name, "Dimensions": dimensions}
    return {"Id": name, "MetricStat": {"Metric": found, "Period": 60, "Stat": statistic}}


@pytest.mark.parametrize("skip", [[], ["--skip-time"]], ids=["real", "virtual"])
def test_the_guard_of_the_template_runs_with_the_metrics_of_the_functions(
    project: Project, skip: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def guard(consumers: Any, namespace: str, limits: Any, clients: Any) -> Iterator[dict[str, str]]:
        [entries, _] = consumers
        mapping = clients.functions.get_event_source_mapping(UUID=entries.mapping)
        seen[:] = namespace, mapping["EventSourceArn"].split(":")[5], clients.metrics
        yield {"consumer": "entries", "queue": entries.queue, "phase": "suspended", "why": "99% of 20 runs failed"}

    monkeypatch.setattr("tarry.tools.testing.guarding.guard", guard)
    monkeypatch.setattr("tarry.tools.testing.guarding.EVERY_SECONDS", 1.0)
    monkeypatch.setattr("tarry.tools.testing.guarding.LAG_SECONDS", 0.0)
    namespace = "Environment: {Variables: {POWERTOOLS_METRICS_NAMESPACE: shop}}"
    project.edit("template.yaml", "    Timeout: 2\nRes", f"    Timeout: 2\n    {namespace}\nRes")
    project.add(GUARD)
    project.send("Entries.fifo", group="a", fail=2)
    result = project.run(*skip)
    *of_mapping, metrics = seen
    now = datetime.now(UTC) + timedelta(days=365)
    asked = [metric("Attempts", "SampleCount"), metric("RunsFailed", "Sum")]
    found = metrics.get_metric_data(MetricDataQueries=asked, StartTime=now - timedelta(days=800), EndTime=now)
    values = [sum(each["Values"]) for each in found["MetricDataResults"]]
    assert (of_mapping, values) == (["shop", "Entries.fifo"], [3, 2])
    assert "_aws" not in result.output
    assert "Not emulated here" not in result.output
    if not skip:
        assert "entries: suspended: 99% of 20 runs failed" in result.output
