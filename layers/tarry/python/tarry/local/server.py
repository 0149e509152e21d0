"""moto's server in this process, in an environment from which no call can reach the real AWS."""

import logging
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer
from moto.sqs.models import sqs_backends

from tarry.local.isolation import HOST, isolated_from_aws
from tarry.template.model import ACCOUNT

SOON_MILLISECONDS = 100


class Endpoint:
    """Where the embedded AWS answers."""

    def __init__(self, url: str, region: str) -> None:
        self.url = url
        self.region = region
        self._session: Any = boto3.Session(aws_access_key_id="local", aws_secret_access_key="local", region_name=region)

    def client(self, service: str) -> Any:
        # No proxies: a company's would be asked for 127.0.0.1.
        config = Config(proxies={}, retries={"total_max_attempts": 1})
        return self._session.client(service, endpoint_url=self.url, config=config)

    def end_leases(self, queue_name: str) -> bool:
        """Make moto forget the FIFO messages that are visible again, before a receive.

        It forgets them one by one while it receives, and so delivers the last of a group first where SQS keeps order.
        False if one is about to become visible: between this and the receive it would be one that was not forgotten.
        """
        queue = sqs_backends[ACCOUNT][self.region].queues[queue_name]
        queue.pending_messages.difference_update([each for each in queue.pending_messages if each.visible])
        now = time.time() * 1000
        return not any(now - 1 <= each.visible_at < now + SOON_MILLISECONDS for each in queue.pending_messages)


@contextmanager
def embedded_aws(region: str) -> Iterator[Endpoint]:
    """moto's server on a free port, for as long as the context lasts; emptied, since its state is the process's."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(HOST, 0, verbose=False)
    server.start()
    url = f"http://{HOST}:{server.get_host_and_port()[1]}"
    try:
        reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(reset).close()
        with isolated_from_aws(region, url):
            yield Endpoint(url, region)
    finally:
        server.stop()
