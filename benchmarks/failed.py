"""Measure the retry of 100,000 dead letters of five groups, one group after the other, against the bound of requests.

The SQS is the simulator, served by another process; each request takes an injected latency more. The bound is the
number of requests times this latency, divided by the requests at once.

python benchmarks/failed.py [dead letters] [latency in milliseconds]
"""

import asyncio
import json
import resource
import subprocess
import sys
import time
from random import Random

from tarry import failed
from tarry.record.attribute import body_sum
from tarry.sqs.client import MAX_PARALLEL
from tarry.world import World, use

GROUPS = 5
ARN = "arn:aws:sqs:us-east-1:123456789012:"


async def serve_dead_letters(count: int) -> None:
    """Serve an SQS with this many dead letters until stdin is closed."""
    from tarry.tools.simulator.history import History
    from tarry.tools.simulator.http.server import serve
    from tarry.tools.simulator.scheduler import AsyncioScheduler
    from tarry.tools.simulator.sqs import Sqs

    scheduler = AsyncioScheduler()
    sqs = Sqs(lambda: scheduler.now, Random(1), History(lambda: scheduler.now))
    async with serve(sqs, scheduler) as url:
        sqs.call("CreateQueue", {"QueueName": "orders-dlq"})
        policy = json.dumps({"deadLetterTargetArn": f"{ARN}orders-dlq", "maxReceiveCount": 15})
        sqs.call("CreateQueue", {"QueueName": "orders", "Attributes": {"RedrivePolicy": policy}})
        queue = sqs.url("orders-dlq")
        for number in range(count):
            body = json.dumps({"id": number, "lines": ["x" * 100] * 5})
            group = Random(number).randrange(GROUPS)
            failure = {"reason": "exhausted", "type": "app.Timeout", "message": "no", "fingerprint": f"group{group}"}
            failure |= {"attempts": 5, "failed_at": "2026-11-21T08:21:40Z", "traceback": "line\n" * 30}
            envelope = {"v": 1, "sum": body_sum(body), "id": f"id-{number}", "origin": f"{ARN}orders"}
            attribute = {"DataType": "String", "StringValue": json.dumps({**envelope, "failure": failure})}
            parameters = {"QueueUrl": queue, "MessageBody": body, "MessageAttributes": {"Tarry": attribute}}
            sqs.call("SendMessage", parameters)
        print(url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def measure(count: int, latency: float) -> None:
    """Retry all groups, and print the time of each and its ratio to the bound."""
    from tarry.tools.local.aws.client import sqs_client

    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        client = sqs_client(server.stdout.readline().strip())
        client.meta.events.register("before-send.sqs", lambda **_: time.sleep(latency))
        with use(World(client_factory=lambda: client)):
            totals = [retry_group(f"group{number}", latency) for number in range(GROUPS)]
        seconds, bound, retried = (sum(column) for column in zip(*totals, strict=True))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"all: {retried:,.0f} retried in {seconds:.1f} s, bound {bound:.1f} s, ratio {seconds / bound:.2f}")
        print(f"memory at most {memory:.0f} MB")
        assert retried == count
    finally:
        server.stdin.close()
        server.wait()


def retry_group(group: str, latency: float) -> tuple[float, float, int]:
    """Retry a group; return the seconds, the seconds of its requests, and how many were retried."""
    began = time.monotonic()
    with failed.opened("orders-dlq") as inspection:
        selection, routes = failed.select(group=group), failed.Routes(inspection.queue)
        results = failed.retry(inspection, selection, routes, concurrency=MAX_PARALLEL)
        retried = sum(result.outcome == "retried" for result in results)
    seconds, bound = time.monotonic() - began, inspection.requests * latency / MAX_PARALLEL
    text = f"{retried:,} retried in {seconds:.1f} s with {inspection.requests:,} requests, {retried / seconds:,.0f}/s"
    print(f"{group}: {text}; bound {bound:.1f} s, ratio {seconds / bound:.2f}", flush=True)
    return seconds, bound, retried


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve_dead_letters(int(sys.argv[2])))
    else:
        numbers = [int(each) for each in sys.argv[1:]]
        measure(numbers[0] if numbers else 100_000, (numbers[1] if len(numbers) > 1 else 50) / 1000)
