"""An address at which a program answers that is not SQS, and a stack that was not created."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tarry.failed.queue_names import stack_queues
from tarry.failed.usage import UsageError
from tarry.tools.cli.app import app

HTML = b"<html>It works!</html>"
NEITHER = "whose answer is neither an object of JSON nor XML (HTTP status {})"
ANSWERS: dict[str, tuple[int, dict[str, str], bytes, str]] = {
    "redirect": (301, {"Location": "https://example.com/"}, b"",
                 "a server that redirects to https://example.com/ (HTTP status 301); check the address"),
    "html": (200, {"Content-Type": "text/html"}, HTML, "a web server with HTML (HTTP status 200); check the address"),
    "not found": (404, {"Content-Type": "text/html"}, HTML, "a web server with HTML (HTTP status 404)"),
    "empty": (200, {}, b"", "a server with an empty answer (HTTP status 200); check the address"),
    "list": (200, {"Content-Type": "application/json"}, b"[]", f"a server {NEITHER.format(200)}"),
    "null": (200, {"Content-Type": "application/json"}, b"null", f"a server {NEITHER.format(200)}"),
    "bytes": (200, {}, b"\x00\xff", f"a server {NEITHER.format(200)}"),
    "login": (401, {"Content-Type": "text/plain"}, b"log in first", f"a server {NEITHER.format(401)}"),
    "no URL": (200, {"Content-Type": "application/x-amz-json-1.0"}, b"{}",
               "a server whose answer to GetQueueUrl has no QueueUrl; check the address"),
    "no answer": (0, {}, b"", ""),
}  # fmt: skip
"""Answers to all requests, and how the error calls them."""
COMMANDS = {"queues": 1, "send orders x": 1, "failed show --queue orders": 2}
"""The exit codes of commands that make requests. All tell of HTML, one of each other answer."""
NEED_A_URL = ["send orders x", "failed show --queue orders", "pause --queue orders", "check --queue orders"]


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server with one answer to all requests; without one it closes each connection."""
    status, headers, body, _ = ANSWERS[request.param]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if not status:
                self.close_connection = True
                return
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


@pytest.mark.parametrize(("endpoint", "name"), [(name, name) for name in ANSWERS], indirect=["endpoint"])
def test_what_is_no_sqs_is_named_in_one_error(
    endpoint: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tarry.tools.cli.failed.targets.TRIES", 1)
    called = ANSWERS[name][3]
    text = f", but {called}" if called else "Connection was closed before we received a valid response"
    commands = {"no URL": [*NEED_A_URL, "console -q orders"], "html": [*COMMANDS]}
    for command in commands.get(name, ["queues"]):
        result = CliRunner().invoke(app, [*command.split(), "--endpoint-url", endpoint])
        *_, error = result.stderr.splitlines()
        assert (result.exit_code, result.stdout) == (COMMANDS.get(command, result.exit_code), "")
        assert result.exit_code in {1, 2}
        assert f"no SQS answers at {endpoint}" in error
        assert text in error
        assert name == "no URL" or error.startswith("tarry: ")
        assert "Traceback" not in result.stderr
        assert result.exception is None or isinstance(result.exception, SystemExit)


def test_a_stack_that_was_not_created_is_named_with_its_status() -> None:
    queue = {"LogicalResourceId": "Dead", "PhysicalResourceId": "https://sqs/dead", "ResourceType": "AWS::SQS::Queue"}
    page = {"StackResourceSummaries": [{**queue, "ResourceStatus": "DELETE_COMPLETE"}]}
    cloudformation: Any = SimpleNamespace(
        get_paginator=lambda operation: SimpleNamespace(paginate=lambda StackName: [page]),
        describe_stacks=lambda StackName: {"Stacks": [{"StackStatus": "ROLLBACK_COMPLETE"}]},
    )
    text = "stack shop has no resources: its status is ROLLBACK_COMPLETE; delete it, and deploy it again"
    with pytest.raises(UsageError, match=text):
        stack_queues(cloudformation, "shop")
