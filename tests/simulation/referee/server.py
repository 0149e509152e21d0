"""MiniStack's SQS behind two pipes, with the clock of the caller. Run with the Python of MiniStack's environment.

Each line on stdin is a request of botocore, with the time in milliseconds; each line on stdout is the response to one.
A line without a body forgets all queues. The process ends when stdin closes.
"""

import asyncio
import json
import os
import sys
import traceback
from types import SimpleNamespace
from typing import Any


def serve() -> None:
    """Answer the requests. Whatever MiniStack prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    from ministack.services import sqs

    clock = SimpleNamespace(milliseconds=0)
    sqs.time = SimpleNamespace(time=lambda: clock.milliseconds / 1000)
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        request = json.loads(line)
        clock.milliseconds = request["at"]
        if request.get("body") is None:
            sqs.reset()
            answer: tuple[int, dict[str, str], bytes] = (200, {}, b"")
        else:
            answer = loop.run_until_complete(_answer(sqs, request))
        status, headers, body = answer
        print(json.dumps({"status": status, "headers": headers, "body": body.decode()}), file=answers, flush=True)


async def _answer(sqs: Any, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    body = request["body"].encode()
    try:
        status, headers, content = await sqs.handle_request("POST", "/", request["headers"], body, {})
    except Exception:  # noqa: BLE001 - as MiniStack's own server does
        traceback.print_exc()
        return 500, {}, b'{"__type": "InternalFailure", "message": "MiniStack raised an exception."}'
    return status, headers, content


if __name__ == "__main__":
    serve()
