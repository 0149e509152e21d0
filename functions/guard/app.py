"""Suspend consumers while what they call is down, and resume them: every minute, one invocation at a time.

The template names the consumers in ``GUARDED``, a JSON list of ``{"consumer": ..., "queue": ..., "mapping": UUID}``.
`tarry.guard.decision` has the rules and their numbers. Each act is a log line with its figures and ``audit``, their
fields, and a report to the topic of the alarms. An invocation ends in an error if it could not look at a consumer.
"""

import json
import logging
import os
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tarry.guard.decision import GuardLimits
from tarry.guard.operations import CLIENT_CONFIG, Clients, Guarded, guard

GUARDED = [Guarded(**each) for each in json.loads(os.environ["GUARDED"])]
NAMESPACE = os.environ.get("POWERTOOLS_METRICS_NAMESPACE", "")
TOPIC = os.environ.get("REPORT_TOPIC", "")

logger = logging.getLogger(__name__)
clients = Clients(*(boto3.client(name, config=CLIENT_CONFIG) for name in ("lambda", "cloudwatch", "sqs")))
sns = boto3.client("sns", config=CLIENT_CONFIG)


def handler(event: object, context: object) -> None:
    for act in guard(GUARDED, NAMESPACE, GuardLimits(), clients):
        if TOPIC:
            report(act)


def report(act: dict[str, Any]) -> None:
    """Send an act to the topic; an error changes nothing."""
    subject = act["text"].encode("ascii", "replace").decode()[:100]
    try:
        sns.publish(TopicArn=TOPIC, Subject=subject, Message=json.dumps(act, indent=1))
    except (BotoCoreError, ClientError):
        logger.exception("The report was not sent to %s.", TOPIC)
