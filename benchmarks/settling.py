"""Measure the settlement of large batches: its requests against the fewest possible, and its time against the latency.

python -m benchmarks.settling [--quick]

The SQS is a server on this machine that answers each request after 5 ms. With ten connections, the fewest seconds are
the requests times 5 ms divided by ten; a second bound is a loop of ten threads that makes the same requests with boto3
and does nothing else. CPU time is compared with that loop's and with that of a loop that only logs the failures.
"""

import asyncio
import json
import logging
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import boto3
from botocore.config import Config

from benchmarks import contenders as of
from benchmarks.contenders import (
    ACCOUNT,
    BenchmarkContext,
    Handler,
    Work,
    answer_to,
    event_of,
)
from benchmarks.message_time import output_discarded
from benchmarks.results import progress, report
from tarry import Reject, consumer
from tarry.sqs.client import MAX_PARALLEL, make_client
from tarry.world import World, use

MESSAGES, QUICK_MESSAGES = 10_000, 1_000
LATENCY_SECONDS = 0.005
BATCH = 10
"""The entries of a request."""
BY_HAND_MESSAGES = 500
"""The messages for which a loop makes one request each; its time for more grows with their number."""


# the server


def serve(pipe: Connection) -> None:
    """Answer requests after a while; send the port, then the number of requests by operation whenever asked."""
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    requests = Counter[str]()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await _head(reader):
            length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
            body = await reader.readexactly(int(length[1]) if length else 0)
            operation = re.search(rb"x-amz-target: *AmazonSQS\.(\w+)", head, re.IGNORECASE)
            name = operation[1].decode() if operation else ""
            requests[name] += 1
            await asyncio.sleep(LATENCY_SECONDS)
            answer = json.dumps(answer_to(name, json.loads(body))).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(answer), answer)
            )
        writer.close()

    def asked() -> None:
        pipe.recv()
        pipe.send(requests.copy())
        requests.clear()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    asyncio.get_running_loop().add_reader(pipe.fileno(), asked)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


class Server:
    """The running server."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.url = f"http://127.0.0.1:{pipe.recv()}"

    def requests(self) -> Counter[str]:
        """Return the number of requests since the last call, by operation."""
        self._pipe.send("requests")
        requests: Counter[str] = self._pipe.recv()
        return requests


@contextmanager
def server() -> Iterator[Server]:
    """Run the server in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield Server(here)
    finally:
        process.terminate()
        process.join()


# what is measured


def rejects() -> None:
    raise Reject("no such account")


CASES: list[tuple[str, Work, Callable[[int], dict[str, int]]]] = [
    ("delayed retries", of.fails, lambda tens: {"GetQueueAttributes": 1, "ChangeMessageVisibilityBatch": tens}),
    (
        "dead letters",
        rejects,
        lambda tens: {"GetQueueAttributes": 2, "SendMessageBatch": tens, "DeleteMessageBatch": tens},
    ),
]
"""The name, the work, and the fewest requests for a number of tens of messages."""


class LongContext(BenchmarkContext):
    """An invocation with 15 minutes left, so that none of the contenders hurries."""

    def get_remaining_time_in_millis(self) -> int:
        return 900_000


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call, and its CPU seconds in all threads of this process."""
    began, cpu_began = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - cpu_began


def settle(handler: Handler, messages: int) -> tuple[float, float]:
    """Return the seconds and CPU seconds of an invocation."""
    return timed(partial(handler, event_of(messages), LongContext()))


def same_requests(client: Any, tens: int, operations: list[str]) -> None:
    """Make the same requests with boto3 in ten threads, and nothing else."""
    url = f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT}/orders"
    handles = [{"Id": str(number), "ReceiptHandle": "h" * 300} for number in range(BATCH)]
    parameters: dict[str, Callable[[], Any]] = {
        "ChangeMessageVisibilityBatch": lambda: client.change_message_visibility_batch(
            QueueUrl=url, Entries=[{**entry, "VisibilityTimeout": 30} for entry in handles]
        ),
        "DeleteMessageBatch": lambda: client.delete_message_batch(QueueUrl=url, Entries=handles),
        "SendMessageBatch": lambda: client.send_message_batch(
            QueueUrl=url,
            Entries=[
                {
                    "Id": entry["Id"],
                    "MessageBody": '{"order": 1}',
                    "MessageAttributes": {"Tarry": {"DataType": "String", "StringValue": "r" * 1_200}},
                }
                for entry in handles
            ],
        ),
    }
    with ThreadPoolExecutor(MAX_PARALLEL) as pool:
        for operation in operations:
            list(pool.map(lambda call: call(), [parameters[operation]] * tens))


def rows(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Yield the seconds and requests of each settlement, beside its bounds."""
    messages = QUICK_MESSAGES if quick else MESSAGES
    tens = -(-messages // BATCH)
    with server() as sqs, output_discarded():
        # An address without TLS has as many connections and the same timeouts as tarry's own client.
        os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", AWS_DEFAULT_REGION="us-east-1")
        os.environ["AWS_ENDPOINT_URL_SQS"] = sqs.url
        client = make_client()
        for name, work, fewest in CASES:
            progress(f"settlement: {messages:,} {name}")
            handler = consumer(backoff=of.BACKOFF)(lambda _, work=work: work())
            with use(World(client_factory=make_client)):
                settle(handler, 1)
                settle(handler, messages // 10)
                sqs.requests()
                with use(World(client_factory=make_client)):
                    seconds, cpu_seconds = settle(handler, messages)
                requests = sqs.requests()
            _, cpu_of_loop = settle(of.bare_loop(work), messages)
            operations = [operation for operation in fewest(tens) if operation != "GetQueueAttributes"]
            boto3_alone, cpu_of_boto3 = timed(partial(same_requests, client, tens, operations))
            sqs.requests()
            yield {
                "case": name,
                "messages": messages,
                "seconds": seconds,
                "requests": dict(requests),
                "fewest": fewest(tens),
                "latency_bound": len(operations) * tens * LATENCY_SECONDS / MAX_PARALLEL,
                "boto3_alone": boto3_alone,
                "cpu_seconds": cpu_seconds,
                "cpu_of_boto3": cpu_of_boto3,
                "cpu_of_loop": cpu_of_loop,
            }
        progress("settlement: by hand")
        by_hand = of.by_hand(of.fails, partial(boto3.client, "sqs", config=Config(retries={"total_max_attempts": 2})))
        settle(by_hand, 1)
        sqs.requests()
        seconds, cpu_seconds = settle(by_hand, BY_HAND_MESSAGES)
        requests = sqs.requests()
        scale = messages / BY_HAND_MESSAGES
        yield {
            "case": "delayed retries by hand",
            "messages": messages,
            "seconds": seconds * scale,
            "cpu_seconds": cpu_seconds * scale,
            "requests": {operation: round(count * scale) for operation, count in requests.items()},
            "measured": BY_HAND_MESSAGES,
        }


if __name__ == "__main__":
    logging.getLogger("botocore").setLevel(logging.ERROR)
    report(rows)
