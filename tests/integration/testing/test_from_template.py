"""A template's queues and functions in a sandbox."""

import os
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tarry.testing import Sandbox
from tarry.tools.simulator.code import CodeError
from tarry.tools.template import TemplateError, read_template

TEMPLATE = """\
AWSTemplateFormatVersion: "2010-09-09"
Transform: AWS::Serverless-2016-10-31
Parameters:
  Stage: {Type: String, Default: dev}
Resources:
"""
ORDERS = """
  OrdersFunction:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: orders
      Handler: app.handler
      Runtime: python3.13
      Timeout: 20
      Environment: {Variables: {NAME: orders, STAGE: !Ref Stage, SHIPMENTS: !Ref ShipmentsQueue, TABLE: !Ref Table}}
      Events:
        Orders:
          Type: SQS
          Properties: {Queue: !GetAtt OrdersQueue.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
  OrdersQueue:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: orders
      VisibilityTimeout: 120
      RedrivePolicy: {deadLetterTargetArn: !GetAtt OrdersDeadLetters.Arn, maxReceiveCount: 7}
  OrdersDeadLetters: {Type: AWS::SQS::Queue, Properties: {QueueName: orders-dlq, MessageRetentionPeriod: 1209600}}
  Table: {Type: AWS::DynamoDB::Table, Properties: {TableName: orders-table}}
"""
SHIPMENTS = """
  ShipmentsFunction:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: shipments
      Handler: app.handler
      Runtime: python3.13
      FunctionName: ship
      MemorySize: 256
      ReservedConcurrentExecutions: 3
      Environment: {Variables: {NAME: shipments}}
      Events:
        Shipments:
          Type: SQS
          Properties:
            Queue: !GetAtt ShipmentsQueue.Arn
            BatchSize: 2
            MaximumBatchingWindowInSeconds: 5
            FunctionResponseTypes: [ReportBatchItemFailures]
            ScalingConfig: {MaximumConcurrency: 2}
            FilterCriteria: {Filters: [{Pattern: '{"body": {"kind": ["parcel"]}}'}]}
  ShipmentsQueue: {Type: AWS::SQS::Queue}
"""
APP = """
    import os
    import constants
    from tarry import Fixed, Message, Queue, consumer

    NAME = os.environ["NAME"]

    @consumer(max_attempts=2, backoff=Fixed(60))
    def handler(message: Message) -> None:
        import late
        os.environ["LEFT_BEHIND"] = "1"
        if "SHIPMENTS" in os.environ:
            seen = {"kind": "parcel", "of": NAME, "number": constants.NUMBER, "late": late.WHO}
            Queue(os.environ["SHIPMENTS"]).send(seen | {"environment": dict(os.environ)})
            message.reject(os.environ["NAME"])
        else:
            handled.append((NAME, constants.NUMBER, message.context.memory_limit_in_mb, message.json()))

    handled = []
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A template of two functions, each with an `app.py` and modules of the same names."""
    for number, name in enumerate(("orders", "shipments")):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "app.py").write_text(dedent(APP))
        (directory / "constants.py").write_text(f"NUMBER = {number}\n")
        (directory / "late.py").write_text(f"WHO = {name!r}\n")
    (tmp_path / "template.yaml").write_text(TEMPLATE + ORDERS + SHIPMENTS)
    return tmp_path / "template.yaml"


def test_a_sandbox_of_a_template_runs_all_its_queues_and_functions(project: Path) -> None:  # SPEC N4
    with Sandbox.from_template(project) as sandbox:
        order = sandbox.send("orders", {"id": 1})
        report = sandbox.run()
        assert report.state(order) == "DEAD_LETTERED"
        [dead_letter] = sandbox.messages("orders-dlq")
        assert dead_letter.failure is not None
        assert (dead_letter.failure.message, dead_letter.failure.function) == ("orders", "OrdersFunction")
        [(name, number, memory, shipment)] = sandbox.module("ShipmentsFunction").handled
        assert (name, number, memory) == ("shipments", 1, "256")
        assert (shipment["of"], shipment["number"], shipment["late"]) == ("orders", 0, "orders")


def shipment_of(sandbox: Sandbox) -> dict[str, Any]:
    """Let the orders function handle an order; return the shipment that the other function got."""
    sandbox.send("orders", {"id": 1})
    sandbox.run()
    shipment: dict[str, Any] = sandbox.module("ship").handled[0][3]
    return shipment


def test_the_variables_of_a_function_are_only_set_while_it_runs(project: Path) -> None:
    before, modules, path = dict(os.environ), set(sys.modules), list(sys.path)
    with Sandbox.from_template(project, parameters={"Stage": "test"}) as sandbox:
        environment = shipment_of(sandbox)["environment"]
    expected = {
        "STAGE": "test",
        "TABLE": "orders-table",
        "SHIPMENTS": "https://sqs.us-east-1.amazonaws.com/123456789012/ShipmentsQueue",
        "AWS_REGION": "us-east-1",
        "AWS_LAMBDA_FUNCTION_NAME": "OrdersFunction",
        "AWS_ACCESS_KEY_ID": "sandbox",
    }
    assert {name: environment[name] for name in expected} == expected
    assert (dict(os.environ), list(sys.path)) == (before, path)
    assert not {"app", "constants", "late"} & (set(sys.modules) - modules)


def test_a_test_can_set_variables_of_all_functions_or_of_one_and_replace_attributes_of_a_module(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"STAGE": "all", "TABLE": "unused", "OrdersFunction": {"TABLE": "mine"}, "ship": {"NAME": "parcels"}}
    with Sandbox.from_template(project, environment=environment) as sandbox:
        monkeypatch.setattr(sandbox.module("OrdersFunction"), "NAME", "stand-in")
        shipment = shipment_of(sandbox)
        assert (shipment["environment"]["STAGE"], shipment["environment"]["TABLE"]) == ("all", "mine")
        assert (shipment["of"], sandbox.module("ship").handled[0][0]) == ("stand-in", "parcels")
        with pytest.raises(ValueError, match="no function 'Orders' came from a template; there are OrdersFunction, "):
            sandbox.module("Orders")


def test_queues_have_the_attributes_of_the_template_and_can_be_named_by_logical_id(project: Path) -> None:
    with Sandbox.from_template(read_template(project)) as sandbox:
        assert sorted(sandbox.sqs.queues()) == ["ShipmentsQueue", "orders", "orders-dlq"]
        asked = {"QueueUrl": sandbox.sqs.url("orders"), "AttributeNames": ["All"]}
        attributes = sandbox.client().get_queue_attributes(**asked)["Attributes"]
        assert attributes["VisibilityTimeout"] == "120"
        assert '"maxReceiveCount": 7' in attributes["RedrivePolicy"]
        sandbox.send("OrdersDeadLetters", "1")
        assert [dead_letter.queue for dead_letter in sandbox.messages("OrdersDeadLetters")] == ["orders-dlq"]


def test_a_mapping_has_the_settings_of_the_template(project: Path) -> None:
    with Sandbox.from_template(project) as sandbox:
        for number in range(4):
            sandbox.send("ShipmentsQueue", {"kind": "parcel" if number else "letter", "number": number})
        report = sandbox.run()
        handled = sandbox.module("ship").handled
        invoked = [event for event in report.events if event.what == "invoked"]
    assert sorted(body["number"] for *_, body in handled) == [1, 2, 3]
    assert [len(event.fields["delivery_ids"]) for event in invoked] == [2, 1]
    assert invoked[1].at - invoked[0].at > 4  # the window
    assert report.count("DISCARDED") == 1


def test_two_sandboxes_of_one_template_do_not_share_modules(project: Path) -> None:
    for _ in range(2):
        with Sandbox.from_template(project) as sandbox:
            shipment_of(sandbox)
            assert len(sandbox.module("ship").handled) == 1


def test_a_function_without_messages_is_not_imported(project: Path) -> None:
    (project.parent / "shipments" / "app.py").write_text("raise RuntimeError")
    with Sandbox.from_template(project) as sandbox:
        sandbox.send("orders-dlq", "1")
        sandbox.run()


def test_a_function_whose_code_is_not_local_is_not_connected_to_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text(TEMPLATE + SHIPMENTS.replace("CodeUri: shipments", "CodeUri: s3://bucket/code.zip"))
    with Sandbox.from_template(path) as sandbox:
        shipment = sandbox.send("ShipmentsQueue", "1")
        assert sandbox.run().state(shipment) == "READY"


def test_parameters_have_the_values_of_samconfig_like_those_of_tarry_local(project: Path) -> None:
    config = project.parent / "samconfig.toml"
    config.write_text('[default.local_invoke.parameters]\nparameter_overrides = "Stage=test"\n')
    with Sandbox.from_template(project) as sandbox:
        assert shipment_of(sandbox)["environment"]["STAGE"] == "test"
    config.write_text("[default")
    with pytest.raises(TemplateError, match=r"samconfig\.toml is not TOML"):
        Sandbox.from_template(project)


# errors


def test_a_handler_that_cannot_be_imported_raises_an_error_when_it_is_needed(project: Path) -> None:
    (project.parent / "orders" / "app.py").write_text("import nothing_of_this_name\n")
    with Sandbox.from_template(project) as sandbox:
        sandbox.send("orders", "1")
        with pytest.raises(CodeError, match=r"OrdersFunction: its handler app\.handler cannot be imported .*nothing_"):
            sandbox.run()
        with pytest.raises(CodeError):
            sandbox.module("OrdersFunction")


def test_a_variable_that_cannot_be_resolved_raises_an_error_unless_the_test_sets_it(
    tmp_path: Path, project: Path
) -> None:
    server = "\n  Server: {Type: AWS::EC2::Instance}\n"
    project.write_text(project.read_text().replace("NAME: shipments", "NAME: !Ref Server") + server)
    text = r"ShipmentsFunction\.Environment\.Variables\.NAME: Ref Server cannot be resolved: set the variable"
    with pytest.raises(TemplateError, match=text):
        Sandbox.from_template(project)
    with Sandbox.from_template(project, environment={"ShipmentsFunction": {"NAME": "given"}}) as sandbox:
        assert sandbox.module("ship").NAME == "given"


def test_a_missing_template_or_a_mapping_that_lambda_would_refuse_raises_an_error(project: Path) -> None:
    with pytest.raises(TemplateError, match=r"none\.yaml does not exist$"):
        Sandbox.from_template(project.with_name("none.yaml"))
    project.write_text(project.read_text().replace("VisibilityTimeout: 120", "VisibilityTimeout: 10"))
    with pytest.raises(ValueError, match="visibility timeout: 10 seconds is less than Function timeout: 20 seconds"):
        Sandbox.from_template(project)
