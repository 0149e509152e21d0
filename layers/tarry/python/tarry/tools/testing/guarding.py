"""The guard of a template, `tarry.guard`, which runs every minute beside simulated mappings."""

import json
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from tarry.guard.decision import GuardLimits
from tarry.guard.operations import TAG, CannotGuard, Clients, Guarded, guard
from tarry.observe.metrics import ATTEMPTS, NAMESPACE, RUNS_FAILED, Metric
from tarry.tools.simulator.client import SimulatedClient
from tarry.tools.simulator.history import HistoryEvent
from tarry.tools.simulator.lambda_mappings import LambdaMappings
from tarry.tools.simulator.scheduler import Scheduler
from tarry.tools.simulator.sqs import Sqs
from tarry.tools.template import Template, TemplateFunction
from tarry.world import World, use

EVERY_SECONDS = 60.0
LAG_SECONDS = 60.0
"""How late metrics are at CloudWatch."""


def guards_in(template: Template) -> list[TemplateFunction]:
    """Return the guard function of a template, if its parameter is on."""
    return [each for each in template.functions.values() if "GUARDED" in each.environment]


class Guarding:
    """A guard function with these environment variables, and the CloudWatch that it asks.

    Each act is an event ``guarded``. It runs a minute after a receive, and each minute while a mapping has its note.
    """

    def __init__(
        self, variables: Mapping[str, str], scheduler: Scheduler, sqs: Sqs, mappings: LambdaMappings, world: World
    ) -> None:
        known = {each.mapping.uuid for each in mappings.mappings}
        named = (Guarded(**each) for each in json.loads(variables["GUARDED"]))
        self._consumers = [each for each in named if each.mapping in known]
        self._namespace = variables.get(NAMESPACE, "")
        self._scheduler, self._sqs, self._mappings, self._world = scheduler, sqs, mappings.mappings, world
        self._clients = Clients(mappings, self, SimulatedClient(sqs, world.clock, lambda _, __, apply: apply()))
        self._values = defaultdict[tuple[str, ...], list[tuple[float, int, float]]](list)
        self._is_due = False
        sqs.history.listen(self._wake, "received")
        sqs.history.listen(self._take_line, "logged")

    def write(self, namespace: str, consumer: str, queue: str, values: Mapping[Metric, Any], at: float) -> None:
        """Take metrics, in place of `tarry.observe.metrics.write`."""
        for metric in (ATTEMPTS, RUNS_FAILED):
            if found := values.get(metric):
                self._values[namespace, metric.name, consumer, queue].append((at, len(found), sum(found)))

    def _take_line(self, event: HistoryEvent) -> None:
        """Take the metrics of a log line, if it has any."""
        line = event.fields["fields"] or {}
        if "_aws" in line and {"consumer", "queue"} <= line.keys():
            namespace, at = line["_aws"]["CloudWatchMetrics"][0]["Namespace"], line["_aws"]["Timestamp"] / 1000
            values = {metric: line.get(metric.name) for metric in (ATTEMPTS, RUNS_FAILED)}
            self.write(namespace, line["consumer"], line["queue"], values, at)

    def get_metric_data(self, **asked: Any) -> dict[str, Any]:
        until, results = self._scheduler.now - LAG_SECONDS, []
        for query in asked["MetricDataQueries"]:
            metric, sums = query["MetricStat"]["Metric"], defaultdict[float, float](float)
            names = (each["Value"] for each in metric["Dimensions"])
            for at, number, total in self._values[metric["Namespace"], metric["MetricName"], *names]:
                if asked["StartTime"].timestamp() <= at <= until:
                    sums[at // 60 * 60] += number if query["MetricStat"]["Stat"] == "SampleCount" else total
            times, values = [datetime.fromtimestamp(at, UTC) for at in sums], [*sums.values()]
            results.append({"Id": query["Id"], "StatusCode": "Complete", "Timestamps": times, "Values": values})
        return {"MetricDataResults": results, "ResponseMetadata": {}}

    def get_metric_statistics(self, **asked: Any) -> dict[str, Any]:
        """Return the age of the oldest message of a queue, the only metric of SQS that the guard asks for."""
        now, oldest = self._scheduler.now, self._sqs.depth(asked["Dimensions"][0]["Value"]).oldest
        return {"Datapoints": [{"Timestamp": datetime.fromtimestamp(now, UTC), "Maximum": now - (oldest or now)}]}

    def _wake(self, _: object = None) -> None:
        if not self._is_due:
            self._is_due = True
            self._scheduler.after(EVERY_SECONDS, self._run)

    def _run(self) -> None:
        self._is_due = False
        with use(self._world), suppress(CannotGuard):  # it has logged why
            for act in guard(self._consumers, self._namespace, GuardLimits(), self._clients):
                self._sqs.history.record("guarded", **act)
        if any(TAG in each.tags for each in self._mappings):
            self._wake()
