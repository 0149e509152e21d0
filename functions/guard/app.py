"""Suspend consumers while what they call is down, and resume them: every minute, one invocation at a time.

The template names the consumers in ``GUARDED``, a JSON list of ``{"consumer": ..., "queue": ..., "mapping": UUID}``.
`tarry.guard.decision` has the rules and their numbers. Each act is a log line with its figures, and a report to the
topic of the alarms.
"""

import json
import logging
import os
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tarry.guard import CLIENT_CONFIG, Clients, Guarded, Limits, guard

GUARDED = [Guarded(**each) for each in json.loads(os.environ["GUARDED"])]
NAMESPACE = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "")
TOPIC = os.environ.get("REPORT_TOPIC", "")

logger = logging.getLogger(__name__)
clients = Clients(*(boto3.client(name, config=CLIENT_CONFIG) for name in ("lambda", "cloudwatch", "sqs")))
sns = boto3.client("sns", config=CLIENT_CONFIG)


def handler(event: object, context: object) -> list[dict[str, Any]]:
    done = []
    for act in guard(GUARDED, NAMESPACE, Limits(), clients):
        done.append(act)
        text = f"{act['consumer']}: {act['phase']}: {act['why']}"
        logger.warning(text, extra={"audit": act})
        report(text, act)
    return done


def report(text: str, act: dict[str, Any]) -> None:
    if not TOPIC:
        return
    try:
        sns.publish(TopicArn=TOPIC, Subject=text.encode("ascii", "replace").decode()[:100], Message=json.dumps(act))
    except (BotoCoreError, ClientError):
        logger.exception("The report was not sent to %s.", TOPIC)
