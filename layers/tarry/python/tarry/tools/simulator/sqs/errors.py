"""The errors of SQS, with its own codes and texts."""

from __future__ import annotations

# By the code that SDKs show: the name of the error in SQS's service model, and its HTTP status.
_MODELED: dict[str, tuple[str, int]] = {
    "AWS.SimpleQueueService.BatchEntryIdsNotDistinct": ("BatchEntryIdsNotDistinct", 400),
    "AWS.SimpleQueueService.BatchRequestTooLong": ("BatchRequestTooLong", 400),
    "AWS.SimpleQueueService.EmptyBatchRequest": ("EmptyBatchRequest", 400),
    "AWS.SimpleQueueService.InvalidBatchEntryId": ("InvalidBatchEntryId", 400),
    "AWS.SimpleQueueService.NonExistentQueue": ("QueueDoesNotExist", 400),
    "AWS.SimpleQueueService.PurgeQueueInProgress": ("PurgeQueueInProgress", 403),
    "AWS.SimpleQueueService.QueueDeletedRecently": ("QueueDeletedRecently", 400),
    "AWS.SimpleQueueService.TooManyEntriesInBatchRequest": ("TooManyEntriesInBatchRequest", 400),
    "AWS.SimpleQueueService.UnsupportedOperation": ("UnsupportedOperation", 400),
    "InvalidAttributeName": ("InvalidAttributeName", 400),
    "InvalidAttributeValue": ("InvalidAttributeValue", 400),
    "InvalidMessageContents": ("InvalidMessageContents", 400),
    "InvalidParameterValue": ("InvalidParameterValueException", 400),
    "MissingParameter": ("MissingRequiredParameterException", 400),
    "OverLimit": ("OverLimit", 403),
    "QueueAlreadyExists": ("QueueNameExists", 400),
    "ReceiptHandleIsInvalid": ("ReceiptHandleIsInvalid", 404),
    "RequestThrottled": ("RequestThrottled", 403),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
}


class SqsError(Exception):
    """SQS refuses a request, or one entry of a batch request.

    ``code`` is the ``Error.Code`` of the SDKs, ``name`` the error's name in SQS's service model (``QueryErrorCode``),
    ``status`` the HTTP status if the whole request is refused.
    """

    def __init__(self, code: str, message: str, *, sender_fault: bool = True, status: int | None = None) -> None:
        super().__init__(f"{code}: {message}")
        name, usual_status = _MODELED.get(code, (code, 400 if sender_fault else 500))
        self.code = code
        self.name = name
        self.message = message
        self.sender_fault = sender_fault
        self.status = usual_status if status is None else status


def invalid(value: object, parameter: str, reason: str) -> SqsError:
    """Return the error for a parameter with an invalid value."""
    return SqsError("InvalidParameterValue", f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")


NO_SUCH_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


def no_such_queue(text: str = "The specified queue does not exist.") -> SqsError:
    return SqsError(NO_SUCH_QUEUE, text)


def wrong_for_queue_type(value: object, parameter: str) -> SqsError:
    """Return the error for a parameter that only the other type of queue accepts."""
    return invalid(value, parameter, "The request include parameter that is not valid for this queue type.")


def check_range(value: int, parameter: str, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise invalid(value, parameter, f"Must be >= {minimum} and <= {maximum}, if provided.")
