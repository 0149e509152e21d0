"""Writes order events to a table. They come twice and out of order now and then, as on any standard queue.

Version 1 of an order places it, versions 2 and up amend it; each carries the whole order. An amendment that
overtakes the version before it is tried again, with growing delays. An order that can never be accepted goes to
the dead letters at once, and so does what is no order at all; an amendment whose earlier version never comes goes
there after four attempts.
"""

import os
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from pydantic import BaseModel, Field, PositiveInt

from tarry import Message, Retry, Schedule, consumer

TABLE = os.environ["ORDERS_TABLE"]
CURRENCIES = {"EUR", "GBP", "USD"}
LIMIT = 500_000  # in cents, as all amounts are
THROTTLED = {"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"}

# Made at import, while Lambda initialises with a full CPU: in the first message it would cost most of a second.
# Two tries, not botocore's ten: waiting is the queue's part, and costs nothing there.
dynamodb = boto3.client("dynamodb", config=Config(retries={"total_max_attempts": 2}))


class Line(BaseModel):
    """So many of an article, at the price of one."""

    article: str
    quantity: int
    price: int


class Order(BaseModel):
    """One version of an order. A body that does not fit is dead-lettered before the handler sees it."""

    id: str = Field(alias="order")
    version: PositiveInt
    customer: str
    currency: str
    lines: list[Line]

    @property
    def total(self) -> int:
        return sum(line.quantity * line.price for line in self.lines)


class OrderDeclined(Exception):
    """Trying again would not help: somebody has to look at this order."""


class EarlierVersionMissing(Exception):
    """An amendment overtook what it amends: by seconds, or by the hours that a sender was down."""


@consumer(
    max_attempts=4,
    backoff=Schedule([20, 600, 7200], jitter="equal"),  # seconds, minutes, hours
    fatal=OrderDeclined,
)
def handler(message: Message[Order]) -> None:
    order = message.payload
    check(order)
    save(order)


def check(order: Order) -> None:
    if order.currency not in CURRENCIES:
        raise OrderDeclined(f"order {order.id}: unknown currency {order.currency!r}")
    for line in order.lines:
        if line.quantity < 1:
            raise OrderDeclined(f"order {order.id}: {line.quantity} of {line.article}")
    if order.total > LIMIT:
        raise OrderDeclined(f"order {order.id}: {order.total / 100:,.2f} is over the limit of {LIMIT / 100:,.2f}")


def save(order: Order) -> None:
    """Writes the order if the table holds the version before it: one request, safe to repeat."""
    try:
        dynamodb.put_item(
            TableName=TABLE,
            Item={
                "order_id": {"S": order.id},
                "version": {"N": str(order.version)},
                "customer": {"S": order.customer},
                "currency": {"S": order.currency},
                "total": {"N": str(order.total)},
            },
            **condition(order),
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
    except dynamodb.exceptions.ConditionalCheckFailedException as error:
        stored = stored_version(error)
        if stored < order.version:
            raise EarlierVersionMissing(
                f"version {order.version} of order {order.id} is here, version {stored + 1} is not yet"
            ) from None
        # Stored before: the event came twice, and there is nothing left to do.
    except ClientError as error:
        if error.response["Error"]["Code"] in THROTTLED:
            raise Retry(delay=60) from error  # a table under load needs more than our first seconds
        raise


def condition(order: Order) -> dict[str, Any]:
    if order.version == 1:
        return {"ConditionExpression": "attribute_not_exists(order_id)"}
    previous = {"N": str(order.version - 1)}
    return {"ConditionExpression": "version = :previous", "ExpressionAttributeValues": {":previous": previous}}


def stored_version(error: ClientError) -> int:
    """The version in the table, 0 for none: DynamoDB tells it along with the failed condition."""
    item: Any = error.response.get("Item")
    return int(item["version"]["N"]) if item else 0
