"""The dead letters of a run, found by looking into the queues that no function consumes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarry.envelope import ATTRIBUTE, FailureRecord, UnreadableRecord, read_envelope
from tarry.local.story import Board
from tarry.outcome import State
from tarry.simulator.records import event_record

NO_LETTER = "said to be dead-lettered, but in no dead-letter queue"


@dataclass(frozen=True)
class Letter:
    """A message in a dead-letter queue, after so many deliveries; ``failure`` is tarry's record, if it wrote one."""

    id: str
    queue: str
    deliveries: int
    failure: FailureRecord | None

    @property
    def why(self) -> str:
        failure = self.failure
        if not failure:
            deliveries = f"{self.deliveries} deliver{'y' if self.deliveries == 1 else 'ies'}"
            return f"moved by SQS itself after {deliveries}, without a record"
        error = ": ".join(filter(None, [failure.type, failure.message]))
        attempts = f" after {failure.attempts} attempt{'s'[: failure.attempts != 1]}" if failure.attempts else ""
        return f"{failure.reason or 'failed'}{attempts}" + (f": {error}" if error else "")


class DeadLetters:
    """Collects what arrives in queues that nobody consumes, by taking it out: one held back would hide its group."""

    def __init__(self, sqs: Any, urls: Mapping[str, str]) -> None:
        self._sqs = sqs
        self._urls = urls
        self.letters: dict[str, Letter] = {}

    def collect(self, board: Board) -> None:
        """Look for new letters; what SQS moved by itself is told to the board."""
        for queue, url in self._urls.items():
            for message in self._take(url):
                letter = _letter(message, queue)
                self.letters[letter.id] = letter
                story = board.find(letter.id)
                if story and not story.is_settled and letter.failure is None:
                    board.found_dead(story, letter.why, time.time())

    def check(self, board: Board) -> None:
        """Every message that is said to be dead must be in a queue as such."""
        for story in board.stories:
            if story.state == State.DEAD_LETTERED and story.id not in self.letters:
                board.lost(story, NO_LETTER)

    def _take(self, url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            answer = self._sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=0,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
            for message in answer.get("Messages", []):
                self._sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
                found.append(message)
            if not answer.get("Messages"):
                return found


def _letter(message: Mapping[str, Any], queue: str) -> Letter:
    record = event_record(message, "", "")
    deliveries = int(record["attributes"].get("ApproximateReceiveCount", 1)) - 1  # but for this look at it
    attribute = record["messageAttributes"].get(ATTRIBUTE)
    try:
        envelope = read_envelope(attribute, record["body"], time.time()) if attribute else None
    except UnreadableRecord:
        envelope = None
    if envelope is None:
        return Letter(record["messageId"], queue, deliveries, None)
    return Letter(envelope.id, queue, deliveries, envelope.failure)
