"""Apply ledger entries to account balances, in order: the message group is the account.

An entry that would overdraw its account is rejected: it is dead-lettered, and the next entry of the account follows.
Any other failure blocks the account for up to 20 minutes: 40 attempts, 30 s apart. Other accounts continue. A table
counts the attempts, because SQS counts a receive also for an entry that waits behind a failed one. It also tells which
entry kills the process: that one is dead-lettered after 40 attempts, in about 9 minutes, and the entries behind it
follow.
"""

import os
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tarry import DynamoDBAttempts, Fixed, Message, Reject, consumer

ACCOUNTS = os.environ["ACCOUNTS_TABLE"]
ENTRIES = os.environ["ENTRIES_TABLE"]

# Created at import, which runs with a full CPU on Lambda; in the first invocation it would take most of a second.
# Two attempts instead of the default of botocore: retries from the queue wait without cost.
dynamodb = boto3.client("dynamodb", config=Config(retries={"total_max_attempts": 2}))
attempts = DynamoDBAttempts(os.environ["ATTEMPTS_TABLE"], client=dynamodb)


@consumer(name="ledger", max_attempts=40, backoff=Fixed(30), attempts=attempts)
def handler(message: Message) -> None:
    entry = LedgerEntry.read(message.json())
    try:
        apply(entry)
    except dynamodb.exceptions.TransactionCanceledException as error:
        known, overdrawn = failed_conditions(error)
        if known:
            return  # an earlier delivery applied it
        if overdrawn:
            message.reject(f"entry {entry.id} of {entry.amount} would overdraw account {entry.account}")
            return
        raise  # throttled, or in conflict with another transaction: retry


@dataclass(frozen=True)
class LedgerEntry:
    """An amount in cents to add to an account; negative to withdraw."""

    id: str
    account: str
    amount: int

    @classmethod
    def read(cls, event: Any) -> "LedgerEntry":
        try:
            return cls(event["entry"], event["account"], int(event["amount"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Reject(f"not a ledger entry: {error!r}") from None


def apply(entry: LedgerEntry) -> None:
    """Record the entry and change the balance in one transaction, which fails if the entry was already applied."""
    enough = "balance >= :taken"
    dynamodb.transact_write_items(
        TransactItems=[
            {
                "Put": {
                    "TableName": ENTRIES,
                    "Item": {
                        "entry_id": {"S": entry.id},
                        "account": {"S": entry.account},
                        "amount": {"N": str(entry.amount)},
                    },
                    "ConditionExpression": "attribute_not_exists(entry_id)",
                }
            },
            {
                "Update": {
                    "TableName": ACCOUNTS,
                    "Key": {"account": {"S": entry.account}},
                    "UpdateExpression": "ADD balance :amount",
                    "ConditionExpression": enough if entry.amount < 0 else f"attribute_not_exists(balance) OR {enough}",
                    "ExpressionAttributeValues": {
                        ":amount": {"N": str(entry.amount)},
                        ":taken": {"N": str(-entry.amount)},
                    },
                }
            },
        ]
    )


def failed_conditions(error: ClientError) -> tuple[bool, bool]:
    """Return whether the conditions of the two writes in `apply` failed."""
    reasons: Any = error.response.get("CancellationReasons", [{}, {}])
    first, second = (reason.get("Code") == "ConditionalCheckFailed" for reason in reasons)
    return first, second
