"""A circuit breaker for each host: while a host is down, its webhooks wait, and those to other hosts go on.

Powertools' decorator does not await an async function, so it would take each call for a success. This breaker raises
the same error, for which tarry defers the message: a deferral costs no attempt.

Each execution environment counts for itself. That needs no table, and a host that is down gets no more than five
requests, and then one every 30 seconds, from each environment.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aws_lambda_powertools.utilities.circuit_breaker import CircuitBreakerOpenError, CircuitInfo, CircuitState

from answers import ReceiverFailed, WebhookRefused

FAILURES = 5
"""The failures in a row that open the circuit of a host."""

RECOVERY_SECONDS = 30
"""How long an open circuit lets no request through. It is the default of Powertools, after which tarry defers."""

MAX_HOSTS = 1_000
"""The most hosts to remember: customers choose them."""


@dataclass
class Circuit:
    """The failures of a host since its last answer."""

    failures: int = 0
    tried_at: float = 0
    """When it failed last, or was tried last while the circuit was open, in seconds of the event loop."""


class Circuits:
    """The circuits of the hosts that have failed."""

    def __init__(self) -> None:
        self._circuits: dict[str, Circuit] = {}

    @contextmanager
    def guarding(self, host: str, *, must_try: bool = False) -> Iterator[None]:
        """Count the failures of a request to a host.

        While the circuit is open, one request passes every `RECOVERY_SECONDS`, and any with ``must_try``. The first
        answer closes the circuit.

        Raises:
            CircuitBreakerOpenError: The circuit is open, and the request must wait.
        """
        circuit, now = self._circuits.get(host), asyncio.get_running_loop().time()
        if circuit is not None and circuit.failures >= FAILURES and not must_try:
            if (seconds := now - circuit.tried_at) < RECOVERY_SECONDS:
                raise _open(host, circuit, seconds)
            circuit.tried_at = now
        try:
            yield
        except (ReceiverFailed, asyncio.CancelledError):  # it is cancelled if it takes too long
            self._fail(host)
            raise
        except WebhookRefused:  # the host has answered
            self._circuits.pop(host, None)
            raise
        else:
            self._circuits.pop(host, None)

    def _fail(self, host: str) -> None:
        circuit = self._circuits.setdefault(host, Circuit())
        circuit.failures += 1
        circuit.tried_at = asyncio.get_running_loop().time()
        if len(self._circuits) > MAX_HOSTS:
            del self._circuits[next(iter(self._circuits))]


def _open(host: str, circuit: Circuit, seconds: float) -> CircuitBreakerOpenError:
    opened_at = int(time.time() - seconds)
    info = CircuitInfo(host, CircuitState.OPEN, circuit.failures, opened_at)
    return CircuitBreakerOpenError(f"{host} has failed {circuit.failures} times in a row", circuit=info)
