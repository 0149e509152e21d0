"""Applies ledger entries to the balances of accounts, in order: the message group is the account.

An entry that would overdraw its account is rejected: it goes to the dead letters, and the account goes on with the
entry behind it. Any other failure holds the account up until the entry has succeeded; other accounts do not notice.
"""

import os
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from tarry import Fixed, Message, Reject, consumer

ACCOUNTS = os.environ["ACCOUNTS_TABLE"]
ENTRIES = os.environ["ENTRIES_TABLE"]

# Made at import, while Lambda initialises with a full CPU: in the first message it would cost most of a second.
# Two tries, not botocore's ten: waiting is the queue's part, and costs nothing there.
dynamodb = boto3.client("dynamodb", config=Config(retries={"total_max_attempts": 2}))


@consumer(max_attempts=5, backoff=Fixed(5))
def handler(message: Message) -> None:
    entry = Entry.read(message.json())
    try:
        apply(entry)
    except dynamodb.exceptions.TransactionCanceledException as error:
        known, overdrawn = failed_conditions(error)
        if known:
            return  # an earlier delivery applied it
        if overdrawn:
            message.reject(f"entry {entry.id} of {entry.amount} would overdraw account {entry.account}")
            return
        raise  # throttled, or in conflict with another writer: worth another attempt


@dataclass(frozen=True)
class Entry:
    """What is added to an account, in cents; below zero it is taken away."""

    id: str
    account: str
    amount: int

    @classmethod
    def read(cls, event: Any) -> "Entry":
        try:
            return cls(event["entry"], event["account"], int(event["amount"]))
        except (KeyError, TypeError, ValueError) as error:
            raise Reject(f"not a ledger entry: {error!r}") from None


def apply(entry: Entry) -> None:
    """Records the entry and changes the balance, both or neither; fails if that was done before."""
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
    """Of the two writes in `apply`, which ones DynamoDB refused for their condition."""
    reasons: Any = error.response.get("CancellationReasons", [{}, {}])
    first, second = (reason.get("Code") == "ConditionalCheckFailed" for reason in reasons)
    return first, second
