"""Count the requests of a batch of ten to SQS and DynamoDB, against the fewest possible.

python -m benchmarks.requests

Look-ups are not counted: they are made once for a queue in 15 minutes.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks import contenders as of
from benchmarks.contenders import (
    BY_HAND,
    POWERTOOLS,
    TARRY,
    BenchmarkContext,
    ClientThatAnswers,
    Handler,
    Work,
    event_of,
)
from benchmarks.message_time import idempotent, output_discarded
from benchmarks.results import Row, progress, report
from benchmarks.settling import rejects
from tarry import DynamoDBAttempts
from tarry.world import World, use

MESSAGES = 10
LOOK_UPS = {"GetQueueAttributes", "GetQueueUrl"}


class Case(NamedTuple):
    """A batch, its handlers by contender, and the fewest requests for it by operation."""

    name: str
    handlers: Mapping[str, Handler]
    fewest: Mapping[str, int]


def cases(client: ClientThatAnswers) -> Iterator[Case]:
    """Yield the cases in the order of the table."""

    def all_of(work: Work) -> dict[str, Handler]:
        return {
            POWERTOOLS: of.powertools(work),
            BY_HAND: of.by_hand(work, client.sqs),
            TARRY: of.tarry(work),
        }

    yield Case("all succeed", all_of(of.nothing), {})
    yield Case("one fails, and comes back later", all_of(of.fails_at(0.1)), {"ChangeMessageVisibilityBatch": 1})
    yield Case("all fail, and come back later", all_of(of.fails), {"ChangeMessageVisibilityBatch": 1})
    sent = {"SendMessageBatch": 1, "DeleteMessageBatch": 1}
    yield Case("all are dead-lettered", {TARRY: of.tarry(rejects)}, sent)
    records = {"PutItem": MESSAGES, "UpdateItem": MESSAGES}
    yield Case("all succeed, with idempotency", idempotent(client), records)
    counted = {TARRY: of.tarry(of.nothing, attempts=DynamoDBAttempts("attempts", client=client.dynamodb()))}
    yield Case("all succeed, with exact attempts", counted, {})
    counted = {TARRY: of.tarry(of.fails, attempts=DynamoDBAttempts("attempts", client=client.dynamodb()))}
    written = {"ChangeMessageVisibilityBatch": 1, "TransactWriteItems": 1}
    yield Case("all fail, with exact attempts", counted, written)


def rows(*, quick: bool) -> Iterator[Row]:
    """Yield the requests of each case by contender."""
    del quick
    progress("requests of a batch of ten")
    client = ClientThatAnswers()
    with use(World(client_factory=client.sqs)), output_discarded():
        for case in cases(client):
            made = {}
            for name, handler in case.handlers.items():
                client.requests.clear()
                handler(event_of(MESSAGES), BenchmarkContext())
                made[name] = {key: count for key, count in client.requests.items() if key not in LOOK_UPS}
            yield {"case": case.name, "fewest": dict(case.fewest), "requests": made}


if __name__ == "__main__":
    report(rows)
