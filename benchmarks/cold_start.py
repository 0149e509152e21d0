"""Measure the cold start of the built functions: the time to load them, and that of their first message.

python benchmarks/cold_start.py [function ...]

Each start is a new process under the runtime client of Lambda, with the layers of its function, boto3 and nothing else.
The AWS services are moto, in this process. On a busy machine, compare the CPU times.
"""

import json
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `tests`
from tests.acceptance.runtime import ROOT, layers_of, link_packages, running, sam_build

STARTS = 15
KEY = "whsec_" + 40 * "A"


@dataclass(frozen=True)
class Case:
    """A function with its first message: the first of a sample event, with other values in its body."""

    environment: dict[str, str]
    event: str
    body: dict[str, Any]
    """NUMBER stands for the number of the start, so that no message is a duplicate; RECEIVER for a URL."""


CASES = {
    "OrdersFunction": Case(
        {"ORDERS_TABLE": "orders", "IDEMPOTENCY_TABLE": "idempotency", "ATTEMPTS_TABLE": "attempts"},
        "orders",
        {"order": "o-NUMBER"},
    ),
    "LedgerFunction": Case(
        {"ACCOUNTS_TABLE": "accounts", "ENTRIES_TABLE": "entries", "ATTEMPTS_TABLE": "attempts"},
        "ledger",
        {"entry": "e-NUMBER"},
    ),
    "DigestFunction": Case({"DIGEST_BUCKET": "digests"}, "digest", {"parcel": "p-NUMBER"}),
    "WebhooksFunction": Case(
        {"SIGNING_SECRET": "ssm:/webhooks/key", "ALLOW_PRIVATE_ADDRESSES": "true"}, "webhooks", {"url": "RECEIVER"}
    ),
}
BASELINE = "EmptyFunction"
EMPTY = "def handler(event, context): return {'batchItemFailures': []}"


class Receiver(BaseHTTPRequestHandler):
    """A receiver of webhooks that accepts all of them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """No access log."""


@contextmanager
def receiver() -> Iterator[str]:
    """Run a receiver of webhooks; yield its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def services() -> Iterator[str]:
    """Run moto with all that the functions use; yield its URL."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        url = f"http://{host}:{port}"
        session = boto3.Session("testing", "testing", region_name="us-east-1")
        dynamodb = session.client("dynamodb", endpoint_url=url)
        tables = {"orders": "order_id", "idempotency": "id", "accounts": "account", "entries": "entry_id"}
        for table, key in tables.items():
            dynamodb.create_table(
                TableName=table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
                KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
            )
        session.client("s3", endpoint_url=url).create_bucket(Bucket="digests")
        session.client("ssm", endpoint_url=url).put_parameter(Name="/webhooks/key", Value=KEY, Type="SecureString")
        yield url
    finally:
        server.stop()


def event_of(case: Case, number: int, receiver_url: str) -> dict[str, Any]:
    """Return a message that is received now: on FIFO, tarry would renew the lease of an older one."""
    [record, *_] = json.loads((ROOT / f"events/{case.event}.json").read_text())["Records"]
    body = json.dumps({**json.loads(record["body"]), **case.body})
    body = body.replace("NUMBER", str(number)).replace("RECEIVER", receiver_url)
    now = str(time.time_ns() // 1_000_000)
    attributes = {**record["attributes"], "SentTimestamp": now, "ApproximateFirstReceiveTimestamp": now}
    return {"Records": [{**record, "messageId": f"message-{number}", "body": body, "attributes": attributes}]}


def measure(function: Path, layers: list[Path], packages: Path, environment: dict[str, str], event: Any) -> list[float]:
    """Return the seconds to load a function, those of its first message, and those on a CPU for both."""
    began = time.perf_counter()
    with running(function, layers, packages, environment) as api:
        if not api.ready.wait(60):
            raise TimeoutError(f"{function.name} was not loaded within 60 s")
        loaded = time.perf_counter()
        response = api.invoke(event)
        handled = time.perf_counter()
        assert api.process is not None
        process_fields = Path(f"/proc/{api.process.pid}/stat").read_text().rpartition(")")[2].split()
    assert response == {"batchItemFailures": []}, f"{function.name}: {response}"
    ticks = sum(map(int, process_fields[11:13]))
    return [loaded - began, handled - loaded, ticks / os.sysconf("SC_CLK_TCK")]


def measure_all(build: Path, names: list[str], starts: int = STARTS) -> dict[str, list[list[float]]]:
    """Return the times of each start of each function; the functions take turns, so that all see the same machine."""
    times: dict[str, list[list[float]]] = {name: [] for name in (BASELINE, *names)}
    with tempfile.TemporaryDirectory() as folder, services() as aws, receiver() as receiver_url:
        packages, empty = Path(folder, "packages"), Path(folder, BASELINE)
        packages.mkdir()
        empty.mkdir()
        link_packages(packages, "boto3", "awslambdaric")
        (empty / "app.py").write_text(EMPTY)
        for number in range(starts + 1):  # the first start fills the caches of the disk
            for name, measured in times.items():
                if name == BASELINE:
                    times_of_start = measure(empty, [], packages, {}, {"Records": []})
                else:
                    case = CASES[name]
                    environment = {"AWS_ENDPOINT_URL": aws, **case.environment}
                    event = event_of(case, number, receiver_url)
                    times_of_start = measure(build / name, layers_of(build, name), packages, environment, event)
                if number > 0:
                    measured.append(times_of_start)
    return times


def table(times: dict[str, list[list[float]]]) -> Iterator[str]:
    yield f"{'median, in ms':20}{'load':>8}{'first message':>16}{'CPU for both':>16}"
    for name, starts in times.items():
        loaded, handled, cpu = (statistics.median(column) * 1000 for column in zip(*starts, strict=True))
        yield f"{name:20}{loaded:8.0f}{handled:16.0f}{cpu:16.0f}"


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as build:
        sam_build(Path(build))
        built = [name for name in CASES if Path(build, name).is_dir()]
        print("\n".join(table(measure_all(Path(build), sys.argv[1:] or built))))
