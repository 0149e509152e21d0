"""`tarry failed show --pytest`: a dead letter becomes a test that fails until its handler is fixed."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import boto3

from tarry.failed.dead_letters import read_dead_letter
from tarry.support.values import queue_arn
from tarry.testing import Sandbox
from tarry.tools.local.dead_letter_tests import test_file as file_of
from tarry.tools.template import read_template
from tests.integration.failed.motoshop import APP, TEMPLATE, MotoShop
from tests.unit.failed.dead_letters import NOW, envelope_of

ROOT = Path(__file__).parents[3]


def run_pytest(folder: Path, *projects: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *projects]
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
    assert "create_table" not in result.stdout
    mended = APP.replace('raise ValueError("too many")', "return")
    for project, code in (("broken", APP), ("mended", mended)):
        shutil.copytree(shop.folder / "code", shop.folder / project / "code")
        (shop.folder / project / "code/app.py").write_text(code)
        (shop.folder / project / "template.yaml").write_text(TEMPLATE)
        (shop.folder / project / f"test_{project}.py").write_text(result.stdout)
    done = run_pytest(shop.folder, "broken", "mended")
    assert done.stdout.splitlines()[-1].startswith("2 failed, 2 passed"), done.stdout
    assert done.stdout.count("FAILED broken/test_broken.py::test_dead_letter_id_") == 2
    assert "1 WAITING_RETRY" in done.stdout
    assert "ValueError: too many" in done.stdout


def test_the_test_creates_the_indexes_of_a_table_and_the_buckets_that_the_environment_names(shop: MotoShop) -> None:
    shop.template()
    resources = """
  Events:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: events
      AttributeDefinitions: [{AttributeName: id, AttributeType: S}, {AttributeName: day, AttributeType: S}]
      KeySchema: [{AttributeName: id, KeyType: HASH}]
      ProvisionedThroughput: {ReadCapacityUnits: 1, WriteCapacityUnits: 1}
      GlobalSecondaryIndexes:
        - IndexName: days
          KeySchema: [{AttributeName: day, KeyType: HASH}]
          Projection: {ProjectionType: ALL}
          ProvisionedThroughput: {ReadCapacityUnits: 1, WriteCapacityUnits: 1}
  Pictures: {Type: AWS::S3::Bucket}
  Others: {Type: AWS::S3::Bucket}
"""
    variables = "{Variables: {TABLE: events, PICTURES: !GetAtt Pictures.Arn, "
    text = TEMPLATE.replace("{Variables: {", variables) + resources.lstrip("\n")
    (shop.folder / "template.yaml").write_text(text)
    shop.put()
    written = shop.run("show", "id-0", "--pytest").stdout
    place, end = written.index("    boto3.client"), written.index("    sqs = ")
    exec(textwrap.dedent(written[place:end]), {"boto3": boto3})
    table = boto3.client("dynamodb").describe_table(TableName="events")["Table"]
    assert [index.get("IndexName") for index in table["GlobalSecondaryIndexes"]] == ["days"]
    assert [bucket.get("Name") for bucket in boto3.client("s3").list_buckets()["Buckets"]] == ["pictures"]


def test_without_a_handler_no_test_is_written(shop: MotoShop) -> None:
    shop.template()
    shop.put(1, origin=None)
    shop.put(1, first=1, origin="refunds")
    for own_id, why in (
        ("id-0", "the queue it came from is unknown, so a test has no handler"),
        ("id-1", "template.yaml: one function must consume refunds for a test, found no function"),
    ):
        assert why in shop.refused("show", own_id, "--pytest")


def test_the_test_of_a_declined_order_makes_the_tables_of_its_function_and_fails_as_the_order_did(
    tmp_path: Path,
) -> None:
    template = read_template(ROOT / "template.yaml")
    lines = [{"article": "tea", "quantity": 2, "price": 300_000}]
    with Sandbox.from_template(template, resources=True) as sandbox:
        order = {"order": "o-1", "version": 1, "customer": "ada", "currency": "EUR", "lines": lines}
        sandbox.send("orders", order)
        sandbox.run()
        sqs = sandbox.client()
        url = sqs.get_queue_url(QueueName="orders-dlq")["QueueUrl"]
        everything = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        [received] = sqs.receive_message(QueueUrl=url, **everything)["Messages"]
    dead_letter = read_dead_letter(received, queue_arn("arn:aws:sqs:us-east-1:123456789012:orders-dlq"), NOW)
    failure = dead_letter.failure
    assert failure is not None
    assert (failure.type, failure.message) == (
        "app.OrderDeclined",
        "order o-1: 6,000.00 is over the limit of 5,000.00",
    )
    text = file_of([dead_letter], template, {})
    made = [name for name in template.backing if f"TableName={name!r}" in text]
    assert made == ["OrdersTable", "OrdersIdempotencyTable", "AttemptsTable"]
    for project, limit in (("declined", "500_000"), ("accepted", "900_000")):
        shutil.copytree(ROOT / "functions/orders", tmp_path / project / "functions/orders")
        app = tmp_path / project / "functions/orders/app.py"
        app.write_text(app.read_text().replace("LIMIT = 500_000", f"LIMIT = {limit}"))
        shutil.copy(ROOT / "template.yaml", tmp_path / project)
        (tmp_path / project / f"test_{project}.py").write_text(text)
    done = run_pytest(tmp_path, "declined", "accepted")
    assert done.stdout.splitlines()[-1].startswith("1 failed, 1 passed"), done.stdout
    assert "FAILED declined/test_declined.py::test_dead_letter_" in done.stdout
    assert f"{failure.type.rpartition('.')[2]}: {failure.message}" in done.stdout
    assert "Error" not in done.stdout.replace("AssertionError", ""), done.stdout
