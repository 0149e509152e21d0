"""Write order events to a table. As on any standard queue, events may arrive twice and out of order.

Version 1 places an order, later versions amend it; each contains the whole order. An amendment that arrives before the
previous version is retried with growing delays, and dead-lettered after four attempts. An order that can never be
accepted, or that is invalid, is dead-lettered at once.
"""

import os
from typing import Any

import boto3
from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer
from botocore.config import Config
from botocore.exceptions import ClientError
from pydantic import BaseModel, Field, PositiveInt

from tarry import DynamoDBAttempts, Message, Retry, Schedule, consumer

TABLE = os.environ["ORDERS_TABLE"]
CURRENCIES = {"EUR", "GBP", "USD"}
LIMIT = 500_000  # in cents, as all amounts are
THROTTLED = {"ProvisionedThroughputExceededException", "RequestLimitExceeded", "ThrottlingException"}

# Created at import, which runs with a full CPU on Lambda; in the first invocation it would take most of a second.
# Two attempts instead of the default of botocore: retries from the queue wait without cost.
dynamodb = boto3.client("dynamodb", config=Config(retries={"total_max_attempts": 2}))
records = DynamoDBPersistenceLayer(table_name=os.environ["IDEMPOTENCY_TABLE"], boto3_client=dynamodb)
attempts = DynamoDBAttempts(os.environ["ATTEMPTS_TABLE"], client=dynamodb)


class OrderLine(BaseModel):
    """A quantity of an article. ``price`` is the unit price."""

    article: str
    quantity: int
    price: int


class OrderVersion(BaseModel):
    """A version of an order. An invalid body is dead-lettered before the handler is called."""

    id: str = Field(alias="order")
    version: PositiveInt
    customer: str
    currency: str
    lines: list[OrderLine]

    @property
    def total(self) -> int:
        return sum(line.quantity * line.price for line in self.lines)


class OrderDeclined(Exception):
    """The order cannot be accepted; a retry would not help."""


class EarlierVersionMissing(Exception):
    """An amendment arrived before the version it amends: by seconds, or by hours if the sender was down."""


@consumer(
    max_attempts=4,
    backoff=Schedule([20, 600, 7200], jitter="equal"),  # seconds, minutes, hours
    fatal=OrderDeclined,
    attempts=attempts,  # a crash of another message costs none
    idempotency=records,  # no two deliveries of an event run at once, and none runs after it was done
    name="orders",
)
def handler(message: Message[OrderVersion]) -> None:
    order = message.payload
    check(order)
    save(order)


def check(order: OrderVersion) -> None:
    if order.currency not in CURRENCIES:
        raise OrderDeclined(f"order {order.id}: unknown currency {order.currency!r}")
    for line in order.lines:
        if line.quantity < 1:
            raise OrderDeclined(f"order {order.id}: quantity {line.quantity} of {line.article}")
    if order.total > LIMIT:
        raise OrderDeclined(f"order {order.id}: {order.total / 100:,.2f} is over the limit of {LIMIT / 100:,.2f}")


def save(order: OrderVersion) -> None:
    """Write the order if the table has the previous version: one request, idempotent."""
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
                f"order {order.id}: version {order.version} arrived before version {stored + 1}"
            ) from None
        # Already stored: the event was delivered twice.
    except ClientError as error:
        if error.response["Error"]["Code"] in THROTTLED:
            raise Retry(delay=60) from error  # a table under load needs more time than the first backoff
        raise


def condition(order: OrderVersion) -> dict[str, Any]:
    if order.version == 1:
        return {"ConditionExpression": "attribute_not_exists(order_id)"}
    previous = {"N": str(order.version - 1)}
    return {"ConditionExpression": "version = :previous", "ExpressionAttributeValues": {":previous": previous}}


def stored_version(error: ClientError) -> int:
    """Return the stored version, 0 if there is none; DynamoDB returns it with the failed condition."""
    item: Any = error.response.get("Item")
    return int(item["version"]["N"]) if item else 0
