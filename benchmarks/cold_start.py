"""Measure cold starts: the time to load a function, and that of its first message, of the contenders and of ours.

python -m benchmarks.cold_start [--quick]

Each start is a new process under the runtime client of Lambda, with the layers of its function, boto3 and nothing else.
The functions of this repository start as well if SAM, which builds them, is there; their AWS services are moto.
"""

import importlib.util
import json
import logging
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import boto3

from benchmarks import layer_size
from benchmarks.contenders import BARE, BY_HAND, POWERTOOLS, TARRY, event_of
from benchmarks.results import Row, progress, report
from benchmarks.settling import server
from tests.acceptance.runtime import ROOT, layers_of, link_packages, running, sam_build
from tests.slow.share import shares

STARTS, QUICK_STARTS = 15, 2
IMPORT = "import tarry"
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


class Start(NamedTuple):
    """The seconds to load a function, those of its first batch, those on a CPU for both, and the peak memory in MB."""

    load: float
    first_batch: float
    cpu: float
    peak: float


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
    from moto.server import ThreadedMotoServer

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


def first_event_of(case: Case, number: int, receiver_url: str) -> dict[str, Any]:
    """Return a message that is received now: on FIFO, tarry would renew the lease of an older one."""
    [record, *_] = json.loads((ROOT / f"events/{case.event}.json").read_text())["Records"]
    body = json.dumps({**json.loads(record["body"]), **case.body})
    body = body.replace("NUMBER", str(number)).replace("RECEIVER", receiver_url)
    now = str(time.time_ns() // 1_000_000)
    attributes = {**record["attributes"], "SentTimestamp": now, "ApproximateFirstReceiveTimestamp": now}
    return {"Records": [{**record, "messageId": f"message-{number}", "body": body, "attributes": attributes}]}


def measure(
    function: Path,
    layers: list[Path],
    packages: Path,
    environment: dict[str, str],
    event: Any,
    *,
    failed: int = 0,
    limit: Callable[[int], object] = lambda process_id: None,
) -> Start:
    """Start a function and have it handle its first batch, of which a number of messages fail.

    ``limit`` gets the process once it has loaded the function: until then, Lambda gives it a whole core.
    """
    began = time.perf_counter()
    with running(function, layers, packages, environment) as api:
        if not api.ready.wait(60):
            raise TimeoutError(f"{function.name} was not loaded within 60 s")
        assert api.process is not None
        limit(api.process.pid)
        loaded = time.perf_counter()
        response = api.invoke(event)
        handled = time.perf_counter()
        process = Path(f"/proc/{api.process.pid}")
        process_fields = (process / "stat").read_text().rpartition(")")[2].split()
        peak = re.search(r"VmHWM:\s*(\d+) kB", (process / "status").read_text())
    assert len(response["batchItemFailures"]) == failed, f"{function.name}: {response}"
    ticks = sum(map(int, process_fields[11:13]))
    assert peak is not None
    return Start(loaded - began, handled - loaded, ticks / os.sysconf("SC_CLK_TCK"), int(peak[1]) / 1024)


# the contenders

FAILING, SUCCEEDING = "with a failure", "without a failure"

APPS = {
    BARE: """
import logging
def handler(event, context):
    failures = []
    for record in event["Records"]:
        try:
            if "fail" in record["body"]:
                raise ValueError("declined")
        except Exception:
            logging.exception("failed")
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}
""",
    POWERTOOLS: """
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response
processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)
def handle(record):
    if "fail" in record.body:
        raise ValueError("declined")
def handler(event, context):
    return process_partial_response(event=event, record_handler=handle, processor=processor, context=context)
""",
    BY_HAND: """
import logging
import boto3
sqs = boto3.client("sqs")
def handler(event, context):
    failures = []
    for record in event["Records"]:
        try:
            if "fail" in record["body"]:
                raise ValueError("declined")
        except Exception:
            logging.exception("failed")
            receives = int(record["attributes"]["ApproximateReceiveCount"])
            url = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
            seconds = min(900, 30 * 3 ** (receives - 1))
            sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=record["receiptHandle"], VisibilityTimeout=seconds
            )
            failures.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failures}
""",
    TARRY: """
from tarry import Exponential, Message, consumer
@consumer(backoff=Exponential(initial=30, multiplier=3, maximum=900))
def handler(message: Message) -> None:
    if "fail" in message.body:
        raise ValueError("declined")
""",
}
LAYER_OF = {POWERTOOLS: "PowertoolsLayer", TARRY: "TarryLayer"}
IMPORTED = """
import sys, time
import awslambdaric.bootstrap  # so that what the runtime client loads is not counted
before, began = len(sys.modules), time.process_time()
import app
print(len(sys.modules) - before, time.process_time() - began)
"""
"""Loads a function as the runtime client does."""
IMPORTED_ALONE = """
import sys, time
before, began = len(sys.modules), time.process_time()
import tarry
print(len(sys.modules) - before, time.process_time() - began)
"""


def imported(script: str, paths: list[Path]) -> tuple[float, float]:
    """Return the number of modules that a script loads, and the CPU seconds."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "PYTHONDONTWRITEBYTECODE": "1",  # layers are read-only
    }
    command = [sys.executable, "-S", "-c", script]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    modules, seconds = result.stdout.split()
    return int(modules), float(seconds)


def contender_rows(folder: Path, starts: int) -> Iterator[Row]:
    """Yield the cold starts of the contenders, each in a first batch of one message."""
    packages, layers = folder / "packages", folder / "layers"
    packages.mkdir()
    link_packages(packages, "boto3", "awslambdaric")
    build_layers(layers)
    functions = {name: folder / f"function-{number}" for number, name in enumerate(APPS)}
    for name, function in functions.items():
        function.mkdir()
        (function / "app.py").write_text(APPS[name])
    layers_of_each = {name: [layers / LAYER_OF[name]] if name in LAYER_OF else [] for name in APPS}
    imports: dict[str, list[tuple[float, float]]] = {name: [] for name in (*APPS, IMPORT)}
    times: dict[tuple[str, str], list[Start]] = {(name, load): [] for load in (SUCCEEDING, FAILING) for name in APPS}
    with server() as sqs:
        environment = {"AWS_ENDPOINT_URL_SQS": sqs.url}
        for number in range(starts + 1):  # the first start fills the caches of the disk
            progress(f"cold starts: {number} of {starts}")
            for (name, load), measured in times.items():
                event = event_of(1)
                event["Records"][0]["body"] = "fail" if load == FAILING else "{}"
                started = measure(
                    functions[name], layers_of_each[name], packages, environment, event, failed=int(load == FAILING)
                )
                if number:
                    measured.append(started)
            for name, loaded in imports.items():
                if name == IMPORT:
                    found = imported(IMPORTED_ALONE, [layers / LAYER_OF[TARRY] / "python"])
                else:
                    paths = [functions[name], *(layer / "python" for layer in layers_of_each[name]), packages]
                    found = imported(IMPORTED, paths)
                if number:
                    loaded.append(found)
    for name, loaded in imports.items():
        modules, seconds = (statistics.median(column) for column in zip(*loaded, strict=True))
        yield {"kind": "import", "function": name, "modules": modules, "ms": seconds * 1000}
    for (name, load), measured in times.items():
        yield {"kind": "start", "function": name, "load": load, **medians(measured)}


# small functions

MEMORY_MB = {"128": 1 / 14, "512": 0.29, "1,769": 1}
"""The share of a core of a function, by its memory."""
FIRST_BATCHES = {
    "succeeds": ("", "{}"),
    "succeeds, with a model": (", model=Order", '{"order": 1}'),
    "succeeds, with idempotency": (', idempotency=DynamoDBPersistenceLayer("table")', "{}"),
    "fails": ("", "fail"),
    "fails, with exact attempts": (', attempts=DynamoDBAttempts("table")', "fail"),
    "is dead-lettered": (", max_attempts=1", "fail"),
}
"""The settings and the body of the only message of the first batch, by what becomes of it."""
LINES_OF = {
    "model": "from pydantic import BaseModel\nclass Order(BaseModel):\n    order: int\n",
    "idempotency": "from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer\n",
    "attempts": "from tarry import DynamoDBAttempts\n",
}


def small_rows(folder: Path, starts: int) -> Iterator[Row]:
    """Yield the first batches of functions with tarry that have a part of a core in an invocation, as on Lambda."""
    packages, layers = folder / "packages", [folder / "layers" / name for name in LAYER_OF.values()]
    times: dict[tuple[str, str], list[Start]] = {}
    for number, (name, (setting, _)) in enumerate(FIRST_BATCHES.items()):
        (folder / f"small-{number}").mkdir()
        lines = "".join(text for word, text in LINES_OF.items() if word in setting)
        app = APPS[TARRY].replace("maximum=900)", f"maximum=900){setting}")
        (folder / f"small-{number}/app.py").write_text(lines + app)
        times |= {(name, memory): [] for memory in MEMORY_MB}
    with server() as aws, shares() as limits:
        for start in range(starts + 1):
            progress(f"first batches of small functions: {start} of {starts}")
            for (name, memory), measured in times.items():
                setting, body = FIRST_BATCHES[name]
                event = event_of(1)
                event["Records"][0] |= {"body": body, "messageId": f"message-{start}"}
                environment = {
                    "AWS_ENDPOINT_URL": aws.url,
                    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": memory.replace(",", ""),
                    "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",  # with it, a small function loads boto3 at once
                }
                function = folder / f"small-{list(FIRST_BATCHES).index(name)}"
                limit = partial(limits.limit, share=MEMORY_MB[memory])
                used = layers if "model" in setting or "idempotency" in setting else layers[-1:]
                failed = int(name.startswith("fails"))
                if (
                    started := measure(function, used, packages, environment, event, failed=failed, limit=limit)
                ) and start:
                    measured.append(started)
    for (name, memory), measured in times.items():
        yield {"kind": "small", "batch": name, "memory": memory, **medians(measured)}


def build_layers(folder: Path) -> None:
    """Build the layers for the Python and the architecture that run here."""
    os.environ["ARCH"] = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    os.environ["PYTHON"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    layer_size.build(folder)


# the shipped functions


def shipped_rows(folder: Path, starts: int) -> Iterator[Row]:
    """Yield the cold starts of the functions of this repository; they take turns, so that all see the same machine."""
    progress("cold starts: building the functions of this repository")
    sam_build(folder)
    names = [name for name in CASES if Path(folder, name).is_dir()]
    times: dict[str, list[Start]] = {name: [] for name in names}
    with services() as aws, receiver() as receiver_url:
        packages = folder / "packages"
        packages.mkdir()
        link_packages(packages, "boto3", "awslambdaric")
        for number in range(starts + 1):
            progress(f"cold starts of the functions of this repository: {number} of {starts}")
            for name, measured in times.items():
                case = CASES[name]
                environment = {"AWS_ENDPOINT_URL": aws, **case.environment}
                event = first_event_of(case, number, receiver_url)
                started = measure(folder / name, layers_of(folder, name), packages, environment, event)
                if number:
                    measured.append(started)
    for name, measured in times.items():
        yield {"kind": "shipped", "function": name, "load": SUCCEEDING, **medians(measured)}


def medians(starts: list[Start]) -> dict[str, float]:
    loaded, handled, cpu, peak = (statistics.median(column) for column in zip(*starts, strict=True))
    return {"load_ms": loaded * 1000, "first_ms": handled * 1000, "cpu_ms": cpu * 1000, "peak_mb": peak}


def rows(*, quick: bool) -> Iterator[Row]:
    """Yield the medians of all starts."""
    starts = QUICK_STARTS if quick else STARTS
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        yield from contender_rows(Path(folder), starts)
        yield from small_rows(Path(folder), starts)
    if importlib.util.find_spec("samcli"):
        with tempfile.TemporaryDirectory() as folder:
            yield from shipped_rows(Path(folder), starts)


if __name__ == "__main__":
    report(rows)
