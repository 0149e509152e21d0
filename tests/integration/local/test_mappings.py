"""Mappings, queues and filters as published templates have them: most were written to be deployed as they are."""

import json
import re

import pytest

from .conftest import Project, timelines

NOTIFY = """
AWSTemplateFormatVersion: "2010-09-09"
Transform: AWS::Serverless-2016-10-31
Resources:
  NotifyQueue:
    Type: AWS::SQS::Queue
    Properties: {VisibilityTimeout: 2}
  Notify:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: notify/
      Handler: app.lambda_handler
      Runtime: python3.9
      Timeout: 2
      Events: {Incoming: {Type: SQS, Properties: {Queue: !GetAtt NotifyQueue.Arn, BatchSize: 10}}}
"""
NOTIFY_APP = """
import json, logging

def lambda_handler(event, context):
    failed = []
    for record in event["Records"]:
        wish = json.loads(record["body"])
        if wish.get("raises", 0) >= int(record["attributes"]["ApproximateReceiveCount"]):
            raise RuntimeError("the mail server does not answer")
        if wish.get("fails"):
            failed.append({"itemIdentifier": record["messageId"]})
    return {"batchItemFailures": failed} if failed else {"statusCode": 200, "body": "sent"}
"""
LISTED = "BatchSize: 10, FunctionResponseTypes: [ReportBatchItemFailures]"


@pytest.fixture
def project(project: Project) -> Project:
    """A project whose one mapping lacks ReportBatchItemFailures and whose queue has no redrive policy."""
    project.write("template.yaml", NOTIFY)
    project.write("notify/app.py", NOTIFY_APP)
    return project


REAL_AND_VIRTUAL = pytest.mark.parametrize("skip", [[], ["--skip-time"]], ids=["real", "virtual"])


def test_without_the_line_a_batch_is_deleted_or_comes_back_as_a_whole(project: Project) -> None:
    for wish in ({"raises": 1}, {}, {}):
        project.send("NotifyQueue", **wish)
    result = project.run("--skip-time")
    again = "IN_FLIGHT 1 -> WAITING_RETRY 2 s -> IN_FLIGHT 2 -> COMMITTED"
    assert timelines(result) == {"1": again, "2": again, "3": again}
    [note] = [line for line in result.stderr.splitlines() if "ReportBatchItemFailures" in line]
    assert note == "Without ReportBatchItemFailures, so a batch succeeds or fails as a whole: NotifyIncoming."


@REAL_AND_VIRTUAL
def test_failures_that_are_ignored_for_want_of_the_line_are_lost_with_one_warning(
    project: Project, skip: list[str]
) -> None:
    project.edit("template.yaml", "BatchSize: 10", "BatchSize: 1")
    for wish in ({"fails": True}, {"fails": True}, {}):
        project.send("NotifyQueue", **wish)
    result = project.run(*skip, exits=1)
    lost = "LOST  (it was deleted, though it was reported as failed: its event source mapping lacks Report"
    assert [each.count(lost) for _, each in sorted(timelines(result).items())] == [1, 1, 0]
    assert "2 of 3 messages LOST." in result.stdout
    [warning] = [line for line in result.stderr.splitlines() if "WARNING" in line]
    assert (
        "WARNING Notify returned batchItemFailures with 1 message of NotifyQueue, but the mapping lacks "
        "FunctionResponseTypes: [ReportBatchItemFailures]: Lambda ignores the failures and deletes the whole batch."
    ) in warning


NAMES_ANOTHER = """
def lambda_handler(event, context):
    if event["Records"][0]["attributes"]["ApproximateReceiveCount"] == "1":
        return {"batchItemFailures": [{"itemIdentifier": "elsewhere"}]}
"""


def test_a_response_that_lambda_rejects_brings_the_whole_batch_back(project: Project) -> None:
    project.edit("template.yaml", "BatchSize: 10", LISTED)
    project.write("notify/app.py", NAMES_ANOTHER)
    project.send("NotifyQueue")
    project.send("NotifyQueue")
    result = project.run("--skip-time")
    assert "an itemIdentifier is not the id of a message of the batch: elsewhere" in result.stdout
    again = "IN_FLIGHT 1 -> WAITING_RETRY 2 s -> IN_FLIGHT 2 -> COMMITTED"
    assert timelines(result) == {"1": again, "2": again}
    assert "Without ReportBatchItemFailures" not in result.stderr


def test_without_a_redrive_policy_the_run_stops_when_messages_only_fail(project: Project) -> None:
    project.edit("template.yaml", "BatchSize: 10", "BatchSize: 1")
    project.send("NotifyQueue", raises=99_999)
    project.send("NotifyQueue", raises=3)
    result = project.run("--skip-time", exits=1)
    start = "IN_FLIGHT 1 -> WAITING_RETRY 2 s -> IN_FLIGHT 2-10, each WAITING_RETRY 2 s  (RuntimeError: the "
    assert timelines(result)["1"].startswith(start)
    assert timelines(result)["2"].endswith("IN_FLIGHT 4 -> COMMITTED")
    assert (
        "Stopped: the message that is left failed 10 deliveries in a row, and NotifyQueue has no redrive policy. On "
        "AWS, Lambda would retry until SQS deletes it at the end of the retention (4 d). Give NotifyQueue a "
        "RedrivePolicy with a dead-letter queue.\n"
    ) in result.stdout
    took = r"^1 of 2 messages did not settle\. The run took \d+ s of virtual time \("
    assert re.search(took, result.stdout, re.MULTILINE)
    assert "LOST" not in result.stdout


LOOPS_APP = """
import os
import boto3

sqs = boto3.client("sqs")

def lambda_handler(event, context):
    for record in event["Records"]:
        sqs.send_message(QueueUrl=os.environ["QUEUE"], MessageBody=record["body"] + ".")
"""
LOOP = (
    "Lambda stops a recursive loop: Notify has been invoked 16 times in one chain of messages, which return to it "
    "through NotifyQueue. If the loop ends by itself, set RecursiveLoop: Allow in the properties of Notify."
)


@pytest.fixture
def loops(project: Project) -> Project:
    """The project with a function that sends a message to its own queue for each that it gets."""
    project.edit("template.yaml", "Runtime:", "Environment: {Variables: {QUEUE: !Ref NotifyQueue}}\n      Runtime:")
    project.write("notify/app.py", LOOPS_APP)
    project.send("NotifyQueue")
    return project


@REAL_AND_VIRTUAL
def test_a_function_that_feeds_its_own_queue_is_stopped_as_on_lambda_with_the_remedy(
    loops: Project, skip: list[str]
) -> None:
    result = loops.run(*skip, "--expect", "committed=16", exits=1)
    refused = "READY -> WAITING_RETRY 2 s  (Lambda refused the invocation: recursive loop (set RecursiveLoop: Allow))"
    assert refused in result.stdout
    *_, loop, where, last = result.stdout.splitlines()
    assert (loop, where) == (
        LOOP,
        "NotifyQueue has no redrive policy, so the message that Lambda refuses stays in it.",
    )
    if skip:
        assert last.startswith("1 of 17 messages did not settle. The run took ")
    else:  # on a busy machine, a message is delivered again before it is done, and feeds the queue twice
        assert " messages did not settle. The run took " in last
    assert result.stderr.count(f"WARNING {LOOP}") == (not skip)


def test_a_redrive_policy_ends_a_recursive_loop_in_the_dead_letter_queue_and_the_reason_is_named(
    loops: Project,
) -> None:
    redrive = "RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 2}"
    loops.edit("template.yaml", "{VisibilityTimeout: 2}", f"{{VisibilityTimeout: 2, {redrive}}}")
    loops.edit("template.yaml", "  Notify:", "  Dead: {Type: AWS::SQS::Queue}\n  Notify:")
    result = loops.run("--skip-time", "--expect", "committed=16,dead_lettered=1")
    assert (
        "moved by SQS itself after 2 deliveries, without a failure record (Lambda refused the invocation: recursive "
        "loop (set RecursiveLoop: Allow))"
    ) in result.stdout
    assert result.stdout.splitlines()[-2] == LOOP


def test_a_recursive_loop_that_is_allowed_is_cut_in_virtual_time_unless_a_time_is_given(
    loops: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("simulator.recursion", "local.show.timeline"):
        monkeypatch.setattr(f"tarry.tools.{module}.LONG_LOOP", 50)
    loops.edit("template.yaml", "      Runtime:", "      RecursiveLoop: Allow\n      Runtime:")
    result = loops.run("--skip-time", exits=1)
    assert 45 < result.stdout.count("COMMITTED\n") / 2 < 55
    assert (
        "Stopped: Notify has been invoked 50 times in one chain of messages, which return to it through NotifyQueue, "
        "and its RecursiveLoop: Allow sets no limit. To let the loop go on for a virtual time: --give-up SECONDS."
    ) in result.stdout
    result = loops.run("--skip-time", "--give-up", "2", exits=1)
    assert result.stdout.count("COMMITTED\n") / 2 > 60
    assert "did not settle (--give-up SECONDS waits longer). The run took 2 s of virtual time" in result.stdout
    assert "Stopped" not in result.stdout


def test_a_consumer_without_a_redrive_policy_is_stopped_once_it_gives_its_messages_up(project: Project) -> None:
    project.edit("template.yaml", "BatchSize: 10", LISTED)
    handler = "@consumer(max_attempts=12, backoff=Fixed(60))\ndef lambda_handler(message):\n    raise TimeoutError\n"
    project.write("notify/app.py", f"from tarry import Fixed, consumer\n{handler}")
    project.send("NotifyQueue")
    result = project.run("--skip-time", exits=1)
    assert "IN_FLIGHT 2-11, each WAITING_RETRY 1 min -> " in timelines(result)["1"]
    assert "IN_FLIGHT 13-21, each WAITING_RETRY 15 min" in timelines(result)["1"]  # ten after its attempts
    assert "Stopped: the message that is left failed 10 deliveries in a row" in result.stdout


def test_a_queue_known_by_its_arn_only_gets_the_visibility_that_its_function_needs(project: Project) -> None:
    project.edit("template.yaml", "Timeout: 2\n      Events", "Timeout: 120\n      Events")
    project.edit("template.yaml", "!GetAtt NotifyQueue.Arn", "arn:aws:sqs:eu-west-1:111122223333:shared-notices")
    project.send("shared-notices", raises=1)
    result = project.run("--skip-time")
    assert timelines(result)["1"].startswith("IN_FLIGHT 1 -> WAITING_RETRY 2 min -> IN_FLIGHT 2")
    note = "shared-notices is not in the template, so its settings are unknown: here its visibility timeout is 120 s."
    assert note in result.stderr.splitlines()


def test_a_cycle_of_dead_letter_queues_is_named_and_does_not_matter_if_a_queue_in_it_has_no_function(
    project: Project,
) -> None:
    policy = "RedrivePolicy: {{deadLetterTargetArn: !GetAtt {}.Arn, maxReceiveCount: 1}}"
    to = f"Type: AWS::SQS::Queue\n    Properties: {{{{VisibilityTimeout: 2, {policy}}}}}\n"
    project.edit("template.yaml", "Type: AWS::SQS::Queue\n    Properties: {VisibilityTimeout: 2}\n", to.format("Dead"))
    project.edit("template.yaml", "  Notify:\n", f"  Dead:\n    {to.format('NotifyQueue')}  Notify:\n")
    project.send("NotifyQueue", raises=9)
    result = project.run("--skip-time", "--expect", "dead_lettered=1")
    assert (
        "The dead-letter queues NotifyQueue -> Dead -> NotifyQueue form a cycle. A message that always fails ends in a "
        "queue that no function consumes (Dead).\n"
    ) in result.stderr


def test_filters_that_lambda_does_not_list_are_played_with_a_note(project: Project) -> None:
    patterns = [
        {"messageAttributes": {"channel": {"stringValue": ["mail"]}}},
        {"body": {"from": [{"cidr": "10.0.0.0/8"}], "$or": [{"kind": ["a"]}, {"kind": [{"exists": False}]}]}},
    ]
    filters = ", ".join(f"{{Pattern: '{json.dumps(each)}'}}" for each in patterns)
    project.edit("template.yaml", "BatchSize: 10", f"BatchSize: 10, FilterCriteria: {{Filters: [{filters}]}}")
    project.send("NotifyQueue", **{"from": "10.9.8.7"})
    project.send("NotifyQueue", **{"from": "10.9.8.7", "kind": "b"})
    project.send("NotifyQueue", kind="b")
    project.records[2]["messageAttributes"] = {"channel": {"stringValue": "mail", "dataType": "String"}}
    result = project.run("--skip-time")
    one, two, three = (timelines(result)[number] for number in "123")
    assert (one.partition(" ")[0], three.partition(" ")[0]) == ("IN_FLIGHT", "IN_FLIGHT")
    assert two == "DISCARDED  (no filter of the mapping matches it)"
    notes = [line for line in result.stderr.splitlines() if line.startswith("NotifyIncoming: its filters")]
    assert [note.split()[3:5] for note in notes] == [["use", "cidr,"], ["name", "messageAttributes;"]]


def test_a_filter_that_lambda_would_refuse_is_refused(project: Project) -> None:
    pattern = json.dumps({"body": {"kind": [{"matches": "a.*"}]}})
    filters = f"FilterCriteria: {{Filters: [{{Pattern: '{pattern}'}}]}}"
    project.edit("template.yaml", "BatchSize: 10", f"BatchSize: 10, {filters}")
    project.send("NotifyQueue")
    assert project.refusal("--skip-time").endswith(
        "AWS refuses the event Incoming of Notify: Invalid filter pattern definition. "
        '({"matches": "a.*"} is not a rule)'
    )
