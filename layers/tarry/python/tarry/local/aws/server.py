"""moto's server in this process: AWS's other services, for tables, buckets and topics."""

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from moto.server import ThreadedMotoServer

from tarry.local.aws.isolation import HOST

STOP_SECONDS = 1.0


@contextmanager
def moto_server() -> Iterator[str]:
    """It is at the URL for as long as the context lasts, on a free port; emptied, since its state is the process's."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(HOST, 0, verbose=False)
    server.start()
    url = f"http://{HOST}:{server.get_host_and_port()[1]}"
    try:
        reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(reset).close()
        yield url
    finally:
        # Its loop does not always notice within reasonable time; its threads do not keep a process from ending.
        stopping = Thread(target=server.stop, daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)
