"""`tarry local --watch`: changes of code and of the template while messages are handled."""

import os
import signal
import time

from .conftest import Project
from .process import LocalProcess

NEW_FUNCTION = """
  New:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: new
      Environment: {Variables: {TABLE: !Ref Items}}
      Events:
        News:
          Type: SQS
          Properties: {Queue: !GetAtt News.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}
  News: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 30}}
  Items: {Type: AWS::Serverless::SimpleTable}
  Price: {Type: AWS::Serverless::Function, Properties: {CodeUri: price}}
"""
NEW_CODE = """
import boto3, os

def handler(event, context):
    table = boto3.client("dynamodb").describe_table(TableName=os.environ["TABLE"])["Table"]
    price = boto3.client("lambda").invoke(FunctionName="Price")["Payload"].read().decode()
    print("new", event["Records"][0]["body"], table["TableName"], price)
"""


def waiting_for_long(project: Project) -> None:
    project.edit("template.yaml", "VisibilityTimeout: 2\n      Redrive", "VisibilityTimeout: 900\n      Redrive")


def test_a_change_that_cannot_run_is_shown_and_no_message_loses_an_attempt(project: Project) -> None:
    waiting_for_long(project)
    with LocalProcess(project.folder, "--watch") as local:
        local.wait("SQS is running at ")
        working = (project.folder / "plain/app.py").read_text()

        project.write("plain/app.py", f"{working}\ndef broken(:\n")
        local.wait(
            r"^Plain cannot be imported: SyntaxError: .*app\.py, line \d+\); "
            r"the code from before keeps running until a save can be imported\.$"
        )
        assert local.text.count("SyntaxError") == 1
        assert 'plain/app.py"' in local.text
        during = local.send("jobs", "{}")
        local.committed(during)
        assert local.timeline(during) == ["READY", "IN_FLIGHT 1", "COMMITTED"]

        mended = working.replace("handled by", "seen by").replace("json, os", "json, os, requests")
        project.write("plain/app.py", mended)
        local.wait(r"^Plain: app\.py changed\. The handler can be imported again; the new code is running\.$")
        local.committed(local.send("jobs", "{}"))
        assert "Plain: seen by plain" in local.text
        local.wait(r"^Warning: Plain imports requests \(plain/app\.py:2\), which its build does not contain\.")
        assert local.text.count("Warning: Ordered") == 1, "a warning of the start is not shown again"

        template = (project.folder / "template.yaml").read_text()
        project.write("template.yaml", f"{template}Oops: [")
        local.wait("^template.yaml has changed, but the former template stays in use: .* is not YAML")
        project.write("template.yaml", template.replace("FifoQueue: true,", "FifoQueue: false, QueueName: x.fifo,"))
        local.wait("^template.yaml has changed, but the former template stays in use: SQS refuses a queue")
        assert local.end(signal.SIGINT) == 0


def test_a_changed_template_takes_effect_and_its_messages_stay(project: Project) -> None:
    waiting_for_long(project)
    project.edit("template.yaml", "Timeout: 2", "Timeout: 30")
    project.write("new/app.py", NEW_CODE)
    project.write("price/app.py", "def handler(event, context): return 1")
    with LocalProcess(project.folder, "--watch") as local:
        local.wait("SQS is running at ")
        waiting = local.send("jobs", '{"fail": 1}')
        local.until(lambda: local.depth("jobs") == 1, "a message that waits for a retry")
        dead = local.send("Dead", "a dead letter")
        template = (project.folder / "template.yaml").read_text()

        changed = template.replace("QUEUE: !Ref Jobs", "QUEUE: other").replace("BatchSize: 5", "BatchSize: 1")
        project.write("template.yaml", changed + NEW_FUNCTION)
        local.wait(
            "^template.yaml has changed: queue News added; function New added; function Plain changed; "
            "event NewNews added; event PlainJobs changed.$"
        )
        local.send("News", "one")
        local.wait("^New: new one Items 1$")
        project.write("price/app.py", "def handler(event, context): return 20")
        local.wait("^Price: app.py changed. The new code is running.$")
        local.send("News", "two")
        local.wait("^New: new two Items 20$")
        first = local.send("jobs", "{}")
        local.wait("^Plain: handled by plain Plain other$")
        local.committed(first)
        assert local.depth("jobs") == 1, "the message that waits for its retry is kept"
        assert local.timeline(waiting)[-1].startswith("WAITING_RETRY")

        key = "{Type: AWS::Serverless::SimpleTable, Properties: {PrimaryKey: {Name: n, Type: String}}}"
        project.write("template.yaml", changed + NEW_FUNCTION.replace("{Type: AWS::Serverless::SimpleTable}", key))
        local.wait("^Items stays as it was until you restart tarry local.$")

        renamed = "  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: gone}}"
        project.write("template.yaml", changed.replace("  Dead: {Type: AWS::SQS::Queue}", renamed))
        local.wait("^template.yaml has changed: queue gone added; queue jobs changed; queues News, Dead removed; ")
        local.wait("^Queue Dead cannot become gone while tarry local runs: gone is a new queue, and Dead stays until ")
        local.wait("stays until tarry local ends, with 1 message.$")
        local.wait("^Queue News is no longer in the template. It stays until tarry local ends, empty.$")
        assert dead in str(local.sqs.receive_message(QueueUrl=local.url("Dead")))
        assert local.end(signal.SIGINT) == 0


def test_an_edited_source_runs_instead_of_an_older_build_or_asks_for_one_if_it_cannot_run(project: Project) -> None:
    plain = "  Plain:\n    Type: AWS::Serverless::Function\n"
    project.edit("template.yaml", plain, f"{plain}    Metadata: {{BuildMethod: makefile}}\n")
    source, ordered = ((project.folder / name).read_text() for name in ("plain/app.py", "ordered/app.py"))
    for name, text in {"Plain": source.replace("handled by", "built and handled by"), "Ordered": ordered}.items():
        project.write(f".aws-sam/build/{name}/app.py", text)
        project.write(f".aws-sam/build/{name}/helper.py", f"def name(): return '{name.lower()}'")
    project.write("ordered/requirements.txt", "no-such-library")
    project.write(".aws-sam/build/template.yaml", "")
    for place in (*project.folder.glob("*/*"), project.folder / "template.yaml"):
        os.utime(place, (time.time() - 99,) * 2)
    os.utime(project.folder / ".aws-sam/build/template.yaml", (time.time() - 9,) * 2)
    with LocalProcess(project.folder, "--watch") as local:
        local.wait("SQS is running at ")
        local.wait(r"^Plain runs from .aws-sam/build/Plain, because its build \(makefile\) is newer than plain and ")
        local.send("jobs", "{}")
        local.wait("^Plain: built and handled by plain")
        project.write("plain/app.py", source.replace("handled by", "edited and handled by"))
        local.wait("^plain/app.py has changed: function Plain changed.$")
        local.wait("^Plain runs from plain, which is newer than its build.$")

        def is_edited() -> bool:
            local.send("jobs", "{}")
            return "Plain: edited and handled by plain" in local.text

        local.until(is_edited, "a message that the edited source handles")
        project.write("ordered/app.py", f"{ordered}# edited")
        local.wait("^ordered/app.py has changed: the build still runs.$")
        local.wait("^Ordered runs from .*; ordered/app.py is newer than this build: run sam build.$")
        assert local.end(signal.SIGINT) == 0
