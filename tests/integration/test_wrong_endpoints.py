"""An address at which a program answers that is not SQS, and a stack that was not created."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tarry.failed.queue_names import stack_queues
from tarry.failed.usage import UsageError
from tarry.tools.cli.app import app

HTML = b"<html>It works!</html>"
ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "redirect": (301, {"Location": "https://example.com/"}, b""),
    "html": (200, {"Content-Type": "text/html"}, HTML),
    "not found": (404, {"Content-Type": "text/html"}, HTML),
    "empty": (200, {}, b""),
    "list": (200, {"Content-Type": "application/json"}, b"[]"),
    "null": (200, {"Content-Type": "application/json"}, b"null"),
    "bytes": (200, {}, b"\x00\xff"),
    "login": (401, {"Content-Type": "text/plain"}, b"log in first"),
    "no URL": (200, {"Content-Type": "application/x-amz-json-1.0"}, b"{}"),
}


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server with one answer to all requests; None closes each connection."""
    answer = request.param and ANSWERS[request.param]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if answer is None:
                self.close_connection = True
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [
        ("redirect", ", but a server that redirects to https://example.com/ (HTTP status 301); check the address"),
        ("html", ", but a web server with HTML (HTTP status 200); check the address"),
        ("not found", ", but a web server with HTML (HTTP status 404); check the address"),
        ("empty", ", but a server with an empty answer (HTTP status 200); check the address"),
        *(
            (name, f", but a server whose answer is neither an object of JSON nor XML (HTTP status {status})")
            for name, status in {"list": 200, "null": 200, "bytes": 200, "login": 401}.items()
        ),
        (None, "Connection was closed before we received a valid response"),
    ],
    indirect=["endpoint"],
)
def test_what_is_no_sqs_is_named_in_one_error(
    endpoint: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tarry.tools.cli.failed.targets.TRIES", 1)
    for command, exit_code in {"queues": 1, "send orders x": 1, "failed show --queue orders": 2}.items():
        result = CliRunner().invoke(app, [*command.split(), "--endpoint-url", endpoint])
        *_, error = result.stderr.splitlines()
        assert (result.exit_code, result.stdout) == (exit_code, "")
        assert error.startswith(f"tarry: no SQS answers at {endpoint}")
        assert text in error
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("endpoint", ["no URL"], indirect=True)
def test_an_answer_without_the_url_of_a_queue_is_one_error(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = f"no SQS answers at {endpoint}, but a server whose answer to GetQueueUrl has no QueueUrl; check the address"
    for command in (
        "send orders x",
        "failed show --queue orders",
        "pause --queue orders",
        "check --queue orders",
        "console -q orders",
    ):
        result = CliRunner().invoke(app, [*command.split(), "--endpoint-url", endpoint])
        assert result.exit_code in {1, 2}
        assert not isinstance(result.exception, KeyError)
        assert error in result.stderr.splitlines()[-1]


class FailedStack:
    """A stack whose creation failed: its resources are deleted."""

    def get_paginator(self, operation: str) -> Any:
        return self

    def paginate(self, StackName: str) -> Iterator[dict[str, Any]]:
        queue = {
            "LogicalResourceId": "Dead",
            "PhysicalResourceId": "https://sqs/dead",
            "ResourceType": "AWS::SQS::Queue",
        }
        yield {"StackResourceSummaries": [{**queue, "ResourceStatus": "DELETE_COMPLETE"}]}

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        return {"Stacks": [{"StackStatus": "ROLLBACK_COMPLETE"}]}


def test_a_stack_that_was_not_created_is_named_with_its_status() -> None:
    text = "stack shop has no resources: its status is ROLLBACK_COMPLETE; delete it, and deploy it again"
    with pytest.raises(UsageError, match=text):
        stack_queues(FailedStack(), "shop")
