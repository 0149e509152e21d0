"""`tarry failed show --pytest`: a dead letter becomes a test that fails until its handler is fixed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.failed.test_command import APP, TEMPLATE, MotoShop, shop
from tests.unit.failed.dead_letters import envelope_of

__all__ = ["shop"]


def run_pytest(folder: Path) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "broken", "mended"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_test_of_a_dead_letter_fails_as_it_did_and_passes_with_a_mended_handler(shop: MotoShop) -> None:
    shop.template()
    attributes = {
        "binary": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        "text": {"DataType": "String", "StringValue": '"""\\ é'},
        "Tarry": {"DataType": "String", "StringValue": json.dumps(envelope_of('{"id": 8}', "id-8"))},
    }
    shop.put(first=7, message='"""\\\n\x1b')
    shop.sqs.send_message(QueueUrl=shop.dlq, MessageBody='{"id": 8}', MessageAttributes=attributes)
    result = shop.run("show", "id-7", "id-8", "--pytest")
    assert result.exit_code == 0, result.output
    assert result.stdout.isascii()
    mended = APP.replace('raise ValueError("too many")', "return")
    for project, code in (("broken", APP), ("mended", mended)):
        shutil.copytree(shop.folder / "code", shop.folder / project / "code")
        (shop.folder / project / "code/app.py").write_text(code)
        (shop.folder / project / "template.yaml").write_text(TEMPLATE)
        (shop.folder / project / f"test_{project}.py").write_text(result.stdout)
    done = run_pytest(shop.folder)
    assert done.stdout.splitlines()[-1].startswith("2 failed, 2 passed"), done.stdout
    assert done.stdout.count("FAILED broken/test_broken.py::test_dead_letter_id_") == 2
    assert "1 WAITING_RETRY" in done.stdout
    assert "ValueError: too many" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--pytest",), "--pytest needs ids: name the dead letters that become tests"),
        (("id-0", "--pytest", "--json"), "--json and --pytest cannot be combined: give one of them"),
        (("id-0", "--pytest"), "the queue it came from is unknown, so a test has no handler"),
        (("id-1", "--pytest"), "template.yaml: one function must consume refunds for a test, found no function"),
    ],
)
def test_without_a_handler_no_test_is_written(shop: MotoShop, arguments: tuple[str, ...], line: str) -> None:
    shop.template()
    shop.put(1, origin=None)
    shop.put(1, first=1, origin="refunds")
    result = shop.run("show", *arguments)
    assert (result.exit_code, result.stdout, line in result.stderr) == (2, "", True), result.stderr
