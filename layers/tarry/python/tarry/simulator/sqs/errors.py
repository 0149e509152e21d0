"""What SQS refuses, in its own codes and words."""

from __future__ import annotations

# Code as the SDKs show it: the name in SQS's model, and the HTTP status where that is not 400.
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
    """A request, or an entry of one, that SQS refuses.

    ``code`` is what SDKs give as ``Error.Code``, ``name`` the error's name in SQS's model (``QueryErrorCode``),
    ``status`` the HTTP status of a request that is refused as a whole.
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
    """A parameter's value that is refused."""
    return SqsError("InvalidParameterValue", f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing(parameter: str) -> SqsError:
    return SqsError("MissingParameter", f"The request must contain the parameter {parameter}.")


def no_such_queue() -> SqsError:
    return SqsError("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")


def wrong_for_queue_type(value: object, parameter: str) -> SqsError:
    """A parameter that only the other type of queue takes."""
    return invalid(value, parameter, "The request include parameter that is not valid for this queue type.")


def check_range(value: int, parameter: str, least: int, most: int) -> None:
    if not least <= value <= most:
        raise invalid(value, parameter, f"Must be >= {least} and <= {most}, if provided.")
