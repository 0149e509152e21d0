"""The log of functions is short: one line for each error of a batch, no forced level, each warning once."""

import json

import pytest

from .conftest import Project

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals: {Function: {Runtime: python3.13, Handler: app.handler, Timeout: 1}}
Resources:
  Jobs:
    Type: AWS::SQS::Queue
    Properties: {VisibilityTimeout: 1, RedrivePolicy: {maxReceiveCount: 2, deadLetterTargetArn: !GetAtt Dead.Arn}}
  Dead: {Type: AWS::SQS::Queue}
  Worker:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: plain
      LoggingConfig: {LogGroup: !ImportValue group}
      Events: {E: {Type: SQS, Properties: {Queue: !GetAtt Jobs.Arn}}}
"""
HANDLER = """
import logging, os
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

processor = BatchProcessor(EventType.SQS)

def work(record):
    logging.getLogger("shop").warning("deprecated")
    logging.getLogger("shop").info("at work as %s", os.environ.get("AWS_LAMBDA_LOG_LEVEL"))
    logging.getLogger("shop").debug("never shown")
    raise LookupError("no order in " + record.body)

def handler(event, context):
    return process_partial_response(event, work, processor, context)
"""


@pytest.fixture
def shop(project: Project) -> Project:
    project.write("template.yaml", TEMPLATE)
    project.write("plain/app.py", HANDLER)
    for number in (1, 2):
        project.send("Jobs", number=number)
    return project


@pytest.mark.parametrize("options", [["--skip-time"], []])
def test_the_error_of_a_batch_is_a_line_for_each_message(shop: Project, options: list[str]) -> None:
    result = shop.run("--expect", "dead_lettered=2", *options)
    assert result.exit_code == 0, result.output
    errors = [f"LookupError: no order in {json.dumps({'number': number})} [app.py:11]" for number in (1, 2)]
    for number, error in enumerate(errors, 1):
        assert result.stdout.count(f"  ({error})") == 2
        assert any(f"#{number} " in line and error in line for line in result.stdout.splitlines())
        assert any(line.endswith(f"  {error}") for line in result.stderr.splitlines())
    assert "Traceback" not in result.output
    assert result.stderr.count("deprecated") == 1
    assert "at work" not in result.stderr  # INFO, below the level that Lambda gives for logs in text
    if options:
        shop.edit("template.yaml", "LogGroup:", "LogFormat: JSON, LogGroup:")
        in_json = shop.run(*options).stderr
        assert "at work as INFO" in in_json
        assert "never shown" not in in_json


@pytest.mark.parametrize("options", [["--skip-time"], []])
def test_the_error_of_a_message_that_fails_alone_is_shown(shop: Project, options: list[str]) -> None:
    shop.edit("plain/app.py", "raise LookupError", "if '1' in record.body: raise LookupError")
    shop.edit("template.yaml", "Jobs.Arn}", "Jobs.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}")
    result = shop.run("--expect", "committed=1,dead_lettered=1", *options)
    assert result.exit_code == 0, result.output
    error = f"LookupError: no order in {json.dumps({'number': 1})} [app.py:11]"
    assert f"  ({error})" in result.stdout
    warning, line, *_ = (each for each in result.stderr.splitlines() if "1 message failed" in each or error in each)
    assert warning.endswith("WARNING 1 message failed")
    assert line.endswith(f"  {error}")
    assert "record_error" not in result.output


def test_a_function_does_not_get_the_log_level_that_another_has_set(shop: Project) -> None:
    other = TEMPLATE.partition("  Worker:")[2].replace("plain", "other").replace("LoggingConfig:", "Description: x #")
    loud = other.replace("Jobs", "Cries")
    shop.write("template.yaml", f"{TEMPLATE}  Loud:{loud}  Cries: {{Type: AWS::SQS::Queue}}\n")
    shop.write("other/app.py", LOUD)
    shop.send("Cries")
    result = shop.run("--skip-time", "--expect", "dead_lettered=2,committed=1")
    assert result.exit_code == 0, result.output
    assert "INFO root: loud" in result.stderr
    assert "at work" not in result.stderr


LOUD = """
import logging
logging.getLogger().setLevel("INFO")
def handler(event, context):
    logging.getLogger().info("loud")
"""
