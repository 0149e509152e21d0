"""The key that signs the webhooks, from Parameter Store or Secrets Manager."""

import logging
import time

from aws_lambda_powertools.utilities.parameters import SecretsProvider, SSMProvider
from botocore.config import Config

from signature import key_of

CACHED_SECONDS = 300
FAILED_SECONDS = 30
"""The time after a failed read in which no other is made, so that a batch waits only once."""

# A read blocks the messages of the batch, which all need the key.
CONFIG = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})

logger = logging.getLogger(__name__)


class NoSigningKey(Exception):
    """The signing key cannot be read."""


class SigningKey:
    """The key in the parameter or secret that ``source`` names: ``ssm:/path/name`` or ``secretsmanager:name-or-arn``.

    It is read when it is first needed, and again after `CACHED_SECONDS`. Creating this object never fails: if a
    function fails at its start, SQS moves its messages to the dead-letter queue, without a failure record.
    """

    def __init__(self, source: str) -> None:
        service, _, self._name = source.partition(":")
        self._provider: SSMProvider | SecretsProvider | None = None
        self._failure: NoSigningKey | None = None
        self._failed_at = 0.0
        if service == "ssm":
            self._provider = SSMProvider(boto_config=CONFIG)
        elif service == "secretsmanager":
            self._provider = SecretsProvider(boto_config=CONFIG)
        self._shown = source if self._provider else "SIGNING_SECRET"  # another value may be the key itself

    def read(self) -> bytes:
        """Return the key.

        Raises:
            NoSigningKey: It cannot be read, or is no key. The text says why; an ERROR in the log names the parameter.
        """
        if self._failure is not None and time.monotonic() < self._failed_at + FAILED_SECONDS:
            raise self._failure.with_traceback(None)
        try:
            return key_of(self._secret())
        except Exception as error:  # noqa: BLE001 whatever it is, no webhook can be signed
            self._failure = NoSigningKey(f"cannot sign with {self._shown}: {str(error).rstrip('.')}")
            self._failed_at = time.monotonic()
        logger.error(
            "No webhook is sent, and every message is deferred: %s. SIGNING_SECRET must name a parameter "
            "(ssm:/path/name) or a secret (secretsmanager:name) that the function may read.",
            self._failure,
        )
        raise self._failure

    def _secret(self) -> str:
        if self._provider is None:
            raise ValueError("it starts with neither ssm: nor secretsmanager:, and is not shown, as it may be the key")
        if isinstance(self._provider, SSMProvider):
            return str(self._provider.get(self._name, max_age=CACHED_SECONDS, decrypt=True))
        return str(self._provider.get(self._name, max_age=CACHED_SECONDS))
