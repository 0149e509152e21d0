"""The dead letters of a run, as they are shown."""

from dataclasses import dataclass

from tarry.envelope.attribute import FailureRecord

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
