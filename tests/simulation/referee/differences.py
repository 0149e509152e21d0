"""The known differences between the model and the other implementations, each with its reason and its source.

In each of them the source says that SQS does what the model does. The facts are those of docs/platform.md, which names
their sources.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.simulation.referee.play import AFTER, AHEAD_OF_ITS_GROUP, UNREACHED, Difference
from tests.simulation.referee.script import BATCH_FAULTS, OF_ANOTHER_ACCOUNT

API = "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/"
GUIDE = "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/"


@dataclass(frozen=True)
class Known:
    """A known difference. Texts with ``*`` are patterns; what is not given may be anything."""

    who: tuple[str, ...]
    reason: str
    source: str
    operation: str = "*"
    faults: tuple[str | None, ...] = (None,)
    subject: str = ""
    theirs: str = "*"
    queue: str = "*"
    fifo: tuple[str, ...] | None = None
    lasting: bool = True
    """Whether later answers for the same queue are expected to differ too."""

    def explains(self, difference: Difference) -> bool:
        return (
            difference.who in self.who
            and difference.fault in self.faults
            and fnmatchcase(difference.operation, self.operation)
            and fnmatchcase(difference.subject, self.subject)
            and fnmatchcase(difference.queue, self.queue)
            and fnmatchcase(str(difference.theirs), self.theirs)
            and (self.fifo is None or difference.fifo in self.fifo)
        )


MOTO, MINISTACK, BOTH = ("moto",), ("MiniStack",), ("moto", "MiniStack")

_ATTRIBUTE_FAULTS = (
    "an invalid attribute name",
    "a Number that is none",
    "an empty String value",
    "eleven attributes",
    "an invalid character in a value",
)
_SUPERSEDED = ("a handle that is superseded", "a handle that is superseded and expired")
_EXPIRED = ("a handle that is expired", "a handle that is superseded and expired")
_EACH_GROUP = "https://github.com/aws-powertools/powertools-lambda-python/issues/2981"
_MOTO_ON_HANDLES = "https://github.com/getmoto/moto/pull/4655 (verified at AWS)"
_RECORDED = "https://github.com/localstack/localstack/blob/main/tests/aws/services/sqs/test_sqs.snapshot.json, "

_SENDS = (
    Known(BOTH, "accept attributes that SQS refuses: more than 10, wrong or reserved names, invalid values",
        f"fact 18, {GUIDE}sqs-message-metadata.html", operation="SendMessage*", faults=_ATTRIBUTE_FAULTS,
        theirs="accepted"),
    Known(MOTO, "keeps messages that it refuses for their attributes",
        f"{API}API_SendMessage.html: a refused message was not sent", operation="SendMessage*",
        faults=_ATTRIBUTE_FAULTS, subject=AFTER),
    Known(MINISTACK, "accepts attributes of any type", f"fact 18, {GUIDE}sqs-message-metadata.html",
        operation="SendMessage*", faults=("an attribute type that does not exist",), theirs="accepted"),
    Known(BOTH, "do not count attributes when they limit the size of a message", "fact 17", operation="SendMessage*",
        faults=("too many bytes with attributes",), theirs="accepted"),
    Known(MOTO, "counts characters, not bytes", "fact 17", operation="SendMessage*", faults=("too many bytes",),
        theirs="accepted"),
    Known(MOTO, "accepts empty bodies, and characters that SQS refuses", "fact 19", operation="SendMessage*",
        faults=("an empty body", "an invalid character"), theirs="accepted"),
    Known(BOTH, "do not check group ids and deduplication ids", f"{API}API_SendMessage.html", operation="SendMessage*",
        faults=("an invalid group id", "an invalid deduplication id"), theirs="accepted"),
    Known(BOTH, "accept a deduplication id on a standard queue",
        f"{API}API_SendMessage.html: the parameter applies only to FIFO queues", operation="SendMessage*",
        faults=("a deduplication id on a standard queue",), theirs="accepted"),
    Known(BOTH, "accept a negative delay", "fact 3", operation="SendMessage*", faults=("a negative delay",),
        theirs="accepted"),
    Known(MINISTACK, "accepts a delay of more than 900 s", "fact 3", operation="SendMessage*",
        faults=("a delay above 900 s",), theirs="accepted"),
    Known(MOTO, "refuses a whole batch for an invalid entry", "fact 16", operation="SendMessageBatch",
        faults=("a delay on FIFO", "an attribute type that does not exist", "an invalid attribute name",
        "too many characters", "a Number that is none", "an empty String value", "eleven attributes",
        "an invalid character in a value"), theirs="InvalidParameterValue"),
    Known(MOTO, "answers MissingParameter to a batch without a group id",
        "https://github.com/Jimdo/sqs-dead-letter-handling/issues/10 (an error of AWS)", operation="SendMessageBatch",
        faults=("no group id",), theirs="MissingParameter", lasting=False),
    Known(MINISTACK, "refuses the entry that has no group id or deduplication id, not its batch",
        "https://github.com/Jimdo/sqs-dead-letter-handling/issues/10 (an error of AWS)", operation="SendMessageBatch",
        faults=("no group id", "no deduplication id"), theirs="accepted"),
    Known(MOTO, "gives a duplicate an id of its own, and forgets a deduplication id with its message", "fact 20",
        operation="SendMessage*", subject="MessageId", queue="*.fifo"),
)  # fmt: skip

_HANDLES = (
    Known(MOTO, "accepts expired and earlier handles on FIFO",
        f"fact 14, {_RECORDED}test_fifo_delete_message_with_expired_receipt_handle", operation="*Message*",
        faults=("a handle that is expired", *_SUPERSEDED), queue="*.fifo", theirs="accepted"),
    Known(MINISTACK, "accepts expired handles on FIFO",
        f"fact 14, {_RECORDED}test_fifo_delete_message_with_expired_receipt_handle", operation="*Message*",
        faults=("a handle that is expired",), queue="*.fifo", theirs="accepted"),
    Known(MINISTACK, "knows only the last handle of a message that it holds", f"facts 11 and 33, {_MOTO_ON_HANDLES}",
        operation="*Message*", faults=("a handle that is gone", *_SUPERSEDED), theirs="ReceiptHandleIsInvalid"),
    Known(MOTO, "calls the handle of a message that is gone invalid",
        "https://github.com/vmihailenco/taskq/issues/29 (an error of AWS)", operation="ChangeMessageVisibility*",
        faults=("a handle that is gone",), theirs="ReceiptHandleIsInvalid", lasting=False),
    Known(MOTO, "forgets the handles of messages that were purged or dead-lettered", _MOTO_ON_HANDLES,
        operation="DeleteMessage*", faults=("a handle that is gone",), theirs="ReceiptHandleIsInvalid", lasting=False),
    Known(MOTO, "keeps the handles of a message in its dead-letter queue",
        f"{API}API_ReceiveMessage.html: a handle belongs to a receive from a queue", operation="*Message*",
        faults=("a handle of another queue",), theirs="accepted"),
    Known(MINISTACK, "keeps the deduplication ids of purged messages",
        "fact 20, https://github.com/localstack/localstack/pull/8218", operation="SendMessage*", subject="MessageId",
        queue="*.fifo"),
    Known(MOTO, "deletes with the handle of an earlier receive", f"fact 11, {API}API_DeleteMessage.html",
        operation="DeleteMessage*", faults=_SUPERSEDED, subject=AFTER),
    Known(BOTH, "call an empty handle invalid: moto for each request, MiniStack for a visibility change",
        "https://github.com/LeanerCloud/AutoSpotting (a log of AWS in its release notes of April 2023)",
        operation="*Message*", faults=("a handle that is empty",), theirs="ReceiptHandleIsInvalid", lasting=False),
    Known(BOTH, "apply a visibility change after the visibility timeout",
        "fact 33a, https://github.com/localstack/localstack/pull/9632 (compared with AWS)",
        operation="ChangeMessageVisibility*", faults=_EXPIRED, subject=AFTER),
    Known(BOTH, "accept a negative visibility timeout; MiniStack also one above 12 hours", "fact 1",
        operation="*Message*", faults=("a wrong visibility timeout",), theirs="accepted"),
    Known(MINISTACK, "does not count the time since the receive", "fact 1", operation="ChangeMessageVisibility*",
        faults=("a total visibility above 12 hours",), theirs="accepted"),
    Known(MOTO, "refuses a whole batch for a visibility above 12 hours", "facts 16 and 32",
        operation="ChangeMessageVisibilityBatch", faults=("a total visibility above 12 hours",),
        theirs="InvalidParameterValue"),
    Known(MOTO, "does not check the entries of a batch as a whole unless it is to send",
        f"fact 16, {API}API_DeleteMessageBatch.html, {API}API_ChangeMessageVisibilityBatch.html",
        operation="[CD]*Batch", faults=BATCH_FAULTS, theirs="accepted"),
)  # fmt: skip

_RECEIVES = (
    Known(BOTH, "receive in the order of sending, not as many messages of a group as they can",
        f"fact 14, {GUIDE}FIFO-queues-understanding-logic.html, {_EACH_GROUP}", operation="ReceiveMessage",
        subject="Messages", fifo=("several groups",)),
    Known(BOTH,
        "hide a group behind any message of it that is invisible; moto may return the last message of a group first",
        "facts 14 and 32", operation="ReceiveMessage", subject="Messages", queue="ledger.fifo", fifo=("one group",)),
    Known(MINISTACK, "dead-letters all exhausted messages at each receive, not only those that it comes to",
        f"fact 7, {GUIDE}sqs-dead-letter-queues.html", operation="ReceiveMessage", faults=(UNREACHED,), subject=AFTER),
    Known(MOTO, "may not dead-letter the first message of a group that became visible as a whole",
        "facts 7, 14 and 32", operation="ReceiveMessage", faults=(AHEAD_OF_ITS_GROUP,), subject=AFTER),
    Known(MOTO, "does not name the source queue of a dead letter", f"fact 7, {API}API_ReceiveMessage.html",
        operation="ReceiveMessage", subject="DeadLetterQueueSourceArn", lasting=False),
    Known(BOTH, "keep the sent time and the deduplication id of a FIFO dead letter", "fact 5",
        operation="ReceiveMessage", subject="SentTimestamp", queue="re*.fifo", lasting=False),
    Known(BOTH, "keep the sent time and the deduplication id of a FIFO dead letter", "fact 5",
        operation="ReceiveMessage", subject="MessageDeduplicationId", queue="re*.fifo", lasting=False),
)  # fmt: skip

_QUEUES = (
    Known(MOTO, "ignores the account in the URL of a queue", f"{API}CommonErrors.html", faults=(OF_ANOTHER_ACCOUNT,)),
    Known(BOTH, "accept attributes of a queue that do not exist", f"{API}API_SetQueueAttributes.html",
        operation="*Queue*", faults=("an attribute that does not exist",), theirs="accepted"),
    Known(MOTO, "accepts attributes of a queue beyond their limits", f"{API}API_SetQueueAttributes.html",
        operation="*Queue*", faults=("an attribute out of its range",), theirs="accepted"),
    Known(MINISTACK, "shows fewer attributes of a queue",
        f"{_RECORDED}test_fifo_set_content_based_deduplication_strategy", operation="GetQueueAttributes",
        subject="SqsManagedSseEnabled", lasting=False),
    Known(MINISTACK, "shows fewer attributes of a FIFO queue",
        f"{_RECORDED}test_fifo_set_content_based_deduplication_strategy", operation="GetQueueAttributes",
        subject="[DF][ei]*[pm]*[et]", queue="*.fifo", lasting=False),
    Known(MINISTACK, "accepts any name of a queue", f"{API}API_CreateQueue.html", operation="CreateQueue",
        faults=("an invalid queue name",), theirs="accepted"),
    Known(BOTH, "make a FIFO queue of any name with the suffix", f"{API}API_CreateQueue.html", operation="CreateQueue",
        faults=("the suffix without FIFO",), theirs="accepted"),
    Known(BOTH, "do not reserve the name of a deleted queue for 60 s", f"{API}API_DeleteQueue.html",
        operation="CreateQueue", faults=("the name of a queue deleted within 60 s",), theirs="accepted"),
    Known(BOTH, "accept a second purge within 60 s",
        f"{API}API_PurgeQueue.html, {_RECORDED}test_successive_purge_calls_fail", operation="PurgeQueue",
        faults=("a second purge within 60 s",), theirs="accepted"),
)  # fmt: skip

KNOWN: tuple[Known, ...] = (*_SENDS, *_HANDLES, *_RECEIVES, *_QUEUES)


def explanation(difference: Difference) -> Known | None:
    """Return the known difference that explains this one."""
    return next((known for known in KNOWN if known.explains(difference)), None)
