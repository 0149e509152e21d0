"""The dead letters of a run, found by looking into the queues that no function consumes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarry.envelope import ATTRIBUTE, Envelope, UnreadableRecord, read_envelope
from tarry.local.records import event_record
from tarry.local.story import Board
from tarry.outcome import State


@dataclass(frozen=True)
class Letter:
    """A message in a dead-letter queue; ``envelope`` is its record, if it has one."""

    id: str
    queue: str
    receive_count: int
    envelope: Envelope | None

    @property
    def is_tarrys(self) -> bool:
        """Whether tarry sent it there, and not SQS's own redrive."""
        return self.envelope is not None and self.envelope.failure is not None

    @property
    def why(self) -> str:
        failure = self.envelope and self.envelope.failure
        if not failure:
            return f"moved by SQS itself after {self.receive_count - 1} deliveries, without a record"
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
                if story and not story.is_settled and not letter.is_tarrys:
                    board.found_dead(story, letter.why)

    def check(self, board: Board) -> None:
        """Every message that is said to be dead must be in a queue as such."""
        for story in board.stories:
            if story.now.state == State.DEAD_LETTERED and story.id not in self.letters:
                board.lost(story, "said to be dead-lettered, but in no dead-letter queue")

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
    count = int(record["attributes"].get("ApproximateReceiveCount", 1))
    attribute = record["messageAttributes"].get(ATTRIBUTE)
    try:
        envelope = read_envelope(attribute, record["body"], time.time()) if attribute else None
    except UnreadableRecord:
        envelope = None
    return Letter(envelope.id if envelope else record["messageId"], queue, count, envelope)
