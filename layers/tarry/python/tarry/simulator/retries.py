"""When a client tries again, and after which wait: botocore's own standard mode, asked without a connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from botocore.retries.quota import RetryQuota
from botocore.retries.standard import (
    ExponentialBackoff,
    RetryContext,
    RetryPolicy,
    RetryQuotaChecker,
    StandardRetryConditions,
)

from tarry.simulator.sqs.validation import service_model
from tarry.sqs.client import TRIES

if TYPE_CHECKING:
    from random import Random

    from tarry.simulator.sqs import SqsError


@dataclass(frozen=True)
class Try:
    """One try of a request, and how it ended: with an answer, SQS's refusal, or an exception on the way."""

    operation: str
    number: int
    answer: dict[str, Any] = field(default_factory=dict)
    refusal: SqsError | None = None
    exception: Exception | None = None

    @property
    def status(self) -> int:
        return self.refusal.status if self.refusal is not None else 200


class Retries:
    """The retries of one client."""

    def __init__(self, random: Random) -> None:
        conditions = StandardRetryConditions(max_attempts=TRIES)
        backoff = ExponentialBackoff(random=random.random)
        self._policy = RetryPolicy(conditions, backoff)
        self._quota = RetryQuotaChecker(RetryQuota())

    def delay(self, tried: Try, request: Any) -> float | None:
        """The seconds to wait before the next try; None if there is none.

        ``request`` is one dict for all tries of a request, in which botocore keeps its accounts: a client that fails
        again and again runs out of second tries.
        """
        response = SimpleNamespace(status_code=tried.status, headers={}) if tried.exception is None else None
        if tried.refusal is None and tried.exception is None:
            self._quota.release_retry_quota(request, response)
            return None
        context = RetryContext(
            attempt_number=tried.number,
            operation_model=service_model().operation_model(tried.operation),
            parsed_response={"Error": {"Code": tried.refusal.code}} if tried.refusal is not None else None,
            http_response=response,
            caught_exception=tried.exception,
            request_context=request,
        )
        if not self._policy.should_retry(context) or not self._quota.acquire_retry_quota(context):
            return None
        return float(self._policy.compute_retry_delay(context))
