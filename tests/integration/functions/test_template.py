"""The template gate: what cfn-lint and SAM say of template.yaml, and what only this project knows of it.

`make template-check` runs checkov too.
"""

import json
import logging
import re
import shlex
import tomllib
from collections.abc import Callable
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from awslambdaric.lambda_runtime_log_utils import JsonFormatter
from cfnlint.config import ConfigMixIn
from cfnlint.runner.cli import Runner
from typer.testing import CliRunner

from tarry import RetryPolicy
from tarry.decide.retry_policy import STANDARD_BACKOFF, bounds_of
from tarry.observe.logs import Log, LogOptions
from tarry.observe.metrics import DIMENSIONS, METRICS
from tarry.tools.cli.app import app
from tarry.tools.scaffold.files import names_of, project_files, this_python, write_project
from tarry.tools.simulator.sqs.queue import IN_FLIGHT_LIMIT
from tarry.tools.template.document import load_document
from tarry.tools.template.intrinsics import Intrinsics
from tests.translation import ROOT, translated

TEMPLATE = load_document(ROOT / "template.yaml")
RESOURCES: dict[str, Any] = TEMPLATE["Resources"]
PARAMETERS: dict[str, Any] = TEMPLATE["Parameters"]
FUNCTIONS = [
    name
    for name, resource in RESOURCES.items()
    if resource["Type"] == "AWS::Serverless::Function"
    and any(event["Type"] == "SQS" for event in resource["Properties"]["Events"].values())
]
"""The functions that consume a queue."""
CONSUMERS = [name.removesuffix("Function") for name in FUNCTIONS]

EMITTED = {
    "AWS/SQS": {
        *("ApproximateAgeOfOldestMessage", "ApproximateNumberOfMessagesDelayed"),
        *("ApproximateNumberOfMessagesNotVisible", "ApproximateNumberOfMessagesVisible", "NumberOfEmptyReceives"),
        *("NumberOfMessagesDeleted", "NumberOfMessagesReceived", "NumberOfMessagesSent", "SentMessageSize"),
    },
    "AWS/Lambda": {"ConcurrentExecutions", "Duration", "Errors", "Invocations", "Throttles"},
}
"""The metrics that AWS emits, by namespace (from its documentation of SQS and Lambda). tarry itself emits none."""
ERROR_LINES = '{ ($.level = "ERROR") && ($.message != "dead_lettered *") }'
DIMENSION = {"AWS/SQS": "QueueName", "AWS/Lambda": "FunctionName"}

NAME_PROPERTIES = re.compile(r"(Queue|Table|Bucket|Function|Role|Alarm|LogGroup|Dashboard|Layer|Topic)?Name")
"""The properties that give a resource a physical name."""
KEPT = {
    *("AWS::SQS::Queue", "AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::SecretsManager::Secret"),
    *("AWS::SQS::QueuePolicy", "AWS::S3::BucketPolicy"),
}
"""Types that hold data, and the policies of these."""


def scope(**given: str) -> Intrinsics:
    """Return the resolver of the template with the given values of parameters, in the stack `shop`."""
    refs = {name: str(given.get(name, parameter["Default"])) for name, parameter in PARAMETERS.items()}
    refs |= {"AWS::StackName": "shop", "AWS::Region": "eu-west-1", "AWS::AccountId": "123456789012"}
    refs |= {"AWS::Partition": "aws", "AWS::URLSuffix": "amazonaws.com"}
    refs |= {
        f"{name}{event}": f"uuid-of-{name}" for name in FUNCTIONS for event in RESOURCES[name]["Properties"]["Events"]
    }
    return Intrinsics(refs, {}, {}, TEMPLATE["Conditions"], frozenset(RESOURCES))


def properties(name: str, **given: str) -> dict[str, Any]:
    """Return the properties of a resource, resolved as far as they do not depend on other resources."""
    found: dict[str, Any] = scope(**given).resolve(RESOURCES[name]["Properties"], name)
    return found


def statements(policy: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return found


def refuses_requests_without_tls(statement: dict[str, Any], actions: str) -> bool:
    refused = (statement["Effect"], statement["Principal"], statement["Action"])
    without_tls = {"Bool": {"aws:SecureTransport": "false"}}
    return refused == ("Deny", "*", actions) and statement["Condition"] == without_tls


def of_type(kind: str) -> list[str]:
    return [name for name, resource in RESOURCES.items() if resource["Type"] == kind]


def target(reference: dict[str, Any]) -> str:
    """Return the resource of a resolved `!GetAtt Resource.Attribute` or `!Ref Resource`."""
    [value] = reference.values()
    name: str = value if isinstance(value, str) else value[0]
    return name


@pytest.fixture(params=FUNCTIONS)
def function(request: pytest.FixtureRequest) -> dict[str, Any]:
    return properties(request.param) | {"logical_id": request.param}


@pytest.fixture
def mapping(function: dict[str, Any]) -> dict[str, Any]:
    [event] = function["Events"].values()
    found: dict[str, Any] = event["Properties"]
    return found


@pytest.fixture
def queue(mapping: dict[str, Any]) -> dict[str, Any]:
    return properties(target(mapping["Queue"]))


@pytest.fixture
def dead_letters(queue: dict[str, Any]) -> dict[str, Any]:
    return properties(target(queue["RedrivePolicy"]["deadLetterTargetArn"]))


@pytest.fixture
def policy(function: dict[str, Any], load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> RetryPolicy:
    """The retry policy in the code of the function."""
    for variable in function["Environment"]["Variables"]:
        monkeypatch.setenv(variable, "some-table")
    policy: RetryPolicy = load(Path(function["CodeUri"]).name).handler.policy
    return policy


def waits_of(policy: RetryPolicy) -> list[float]:
    """Return the longest wait after each attempt but the last."""
    backoff = policy.backoff or STANDARD_BACKOFF
    waits = [bounds_of(backoff, attempt) for attempt in range(1, policy.max_attempts)]
    return [longest for _, longest in filter(None, waits)]


# the tools


def test_cfn_lint_accepts_the_template_its_translation_and_the_template_of_a_new_project(tmp_path: Path) -> None:
    """`sam validate --lint` runs cfn-lint on the template. Some rules, such as E3505, see only the translation."""
    (tmp_path / "translated.json").write_text(json.dumps(translated()))
    write_project(tmp_path / "my-shop", project_files(names_of("my-shop"), this_python()))
    for path in (ROOT / "template.yaml", tmp_path / "translated.json", tmp_path / "my-shop/template.yaml"):
        assert list(Runner(ConfigMixIn(["--template", str(path)])).run()) == []


def test_tarry_check_has_no_findings_in_the_template() -> None:
    """Failures are reported, timeouts, windows, `maxReceiveCount` and retentions fit, and each role suffices."""
    result = CliRunner().invoke(app, ["check", str(ROOT / "template.yaml")])
    assert result.stdout.endswith("no findings in 8 queues and 4 functions with a queue.\n"), result.output


def test_each_exception_has_its_reason_beside_it() -> None:
    config = TEMPLATE["Metadata"]["cfn-lint"]["config"]["ignore_checks"]
    lines = (ROOT / "template.yaml").read_text().splitlines()
    lines += (ROOT / ".checkov.yaml").read_text().splitlines()
    excepted = [line for line in lines if re.match(r"\s*- ([WEI]\d{4}|CKV2?_AWS_\d+)\b", line)]
    assert len(excepted) > len(config)
    assert all(re.search(r"\S # \S.{20,}", line) for line in excepted), excepted


# a mapping and its queue


def test_concurrency_is_limited_by_the_mapping_or_its_pollers_and_never_reserved(
    function: dict[str, Any], mapping: dict[str, Any]
) -> None:
    assert "ReservedConcurrentExecutions" not in function
    assert 2 <= int(mapping["ScalingConfig"]["MaximumConcurrency"]) <= 1000
    assert "ProvisionedPollerConfig" not in mapping
    [asked] = properties(function["logical_id"], ProvisionedPollers="3")["Events"].values()
    if "ProvisionedPollerConfig" in asked["Properties"]:  # AWS refuses both
        assert asked["Properties"]["ProvisionedPollerConfig"] == {"MinimumPollers": "3", "MaximumPollers": "3"}
        assert "ScalingConfig" not in asked["Properties"]
    else:
        assert function["logical_id"] == "DigestFunction"  # more pollers would split its batches


def test_dead_letters_are_kept_for_14_days_for_their_queue_only_and_messages_twice_as_long_as_their_retries(
    policy: RetryPolicy, mapping: dict[str, Any], queue: dict[str, Any], dead_letters: dict[str, Any]
) -> None:  # SPEC C9
    factor = max(2, mapping["BatchSize"]) if queue.get("FifoQueue") else 2
    assert queue["RedrivePolicy"]["maxReceiveCount"] >= factor * policy.max_attempts + 5
    assert dead_letters["MessageRetentionPeriod"] == 14 * 24 * 3600
    assert sum(waits_of(policy)) < queue["MessageRetentionPeriod"] / 2
    allowed = dead_letters["RedriveAllowPolicy"]
    assert allowed["redrivePermission"] == "byQueue"
    assert allowed["sourceQueueArns"] == [f"arn:aws:sqs:eu-west-1:123456789012:{queue['QueueName']}"]


# security


def test_the_role_allows_what_the_runtime_does_and_no_more(
    function: dict[str, Any], mapping: dict[str, Any], queue: dict[str, Any]
) -> None:
    [policy] = properties(target(function["Role"]))["Policies"]
    granted: dict[str, set[str]] = {}
    for statement in statements(policy):
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        if actions[0].startswith("sqs:"):
            granted.setdefault(target(statement["Resource"]), set()).update(actions)
    consume = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes"}
    if function["CodeUri"] == "functions/webhooks":
        consume.add("sqs:SendMessage")  # it defers messages
    assert granted == {
        target(mapping["Queue"]): consume,
        target(queue["RedrivePolicy"]["deadLetterTargetArn"]): {"sqs:SendMessage", "sqs:GetQueueAttributes"},
    }
    assert "*" not in str(policy).replace("/scans/*", "the objects it writes")


def test_a_key_of_yours_encrypts_all_queues_and_the_role_may_use_it_only_through_sqs(function: dict[str, Any]) -> None:
    key = "arn:aws:kms:eu-west-1:123456789012:key/1"
    for name in of_type("AWS::SQS::Queue"):
        assert properties(name)["SqsManagedSseEnabled"] is True
        assert "KmsMasterKeyId" not in properties(name)
        encrypted = properties(name, QueueKeyArn=key)
        assert encrypted["KmsMasterKeyId"] == key
        assert "SqsManagedSseEnabled" not in encrypted  # SQS refuses both
    [policy] = properties(target(function["Role"]), QueueKeyArn=key)["Policies"]
    [statement] = [each for each in statements(policy) if "kms:Decrypt" in each["Action"]]
    assert set(statement["Action"]) == {"kms:Decrypt", "kms:GenerateDataKey"}  # a send needs both
    assert statement["Resource"] == key
    assert statement["Condition"] == {"StringEquals": {"kms:ViaService": "sqs.eu-west-1.amazonaws.com"}}


def test_every_queue_and_bucket_refuses_requests_without_tls() -> None:
    policies = [properties(name) for name in of_type("AWS::SQS::QueuePolicy")]
    covered = [target(queue) for each in policies for queue in each["Queues"]]
    assert sorted(covered) == sorted(of_type("AWS::SQS::Queue"))
    for each in policies:
        [statement] = statements(each)
        assert refuses_requests_without_tls(statement, "sqs:*")
    for name in of_type("AWS::S3::Bucket"):
        [statement] = statements(properties(f"{name}Policy"))
        assert refuses_requests_without_tls(statement, "s3:*")
        assert len(statement["Resource"]) == 2  # the bucket and its objects


def test_only_webhooks_may_send_a_message_to_its_own_queue_any_number_of_times_and_tarry_knows_of_it(
    function: dict[str, Any],
) -> None:
    # SPEC E8, J5: webhooks defers its messages for as long as its signing key is missing
    expected = "Allow" if function["CodeUri"] == "functions/webhooks" else None
    assert function.get("RecursiveLoop") == expected
    assert function.get("Environment", {}).get("Variables", {}).get("TARRY_RECURSIVE_LOOP") == expected


@pytest.mark.parametrize(("name", "days"), [("DigestBucket", 90), ("ArchiveBucket", 365)])
def test_a_bucket_is_encrypted_and_private_and_deletes_old_objects(name: str, days: int) -> None:
    bucket = properties(name)
    [encryption] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    [rule] = bucket["LifecycleConfiguration"]["Rules"]
    assert (rule["Status"], rule["ExpirationInDays"]) == ("Enabled", days)


# redrive


def test_the_schedule_of_redrive_is_off_and_limits_how_often_a_message_is_retried() -> None:
    function = properties("RedriveFunction")
    [schedule] = function["Events"].values()
    assert (schedule["Type"], schedule["Properties"]["State"]) == ("ScheduleV2", "DISABLED")
    assert schedule["Properties"]["RetryPolicy"] == function["EventInvokeConfig"] == {"MaximumRetryAttempts": 0}
    text = str(RESOURCES["RedriveFunction"]["Properties"]["Events"]["Daily"]["Properties"]["Input"]["Fn::Sub"])
    asked = json.loads(text.replace("${OrdersDeadLetters.QueueName}", "shop-orders-dlq"))
    assert asked["where"] == ["attempts < 20"]


def test_redrive_may_empty_all_dead_letter_queues_send_to_all_queues_and_write_to_its_archive_only() -> None:
    topic = "arn:aws:sns:eu-west-1:123456789012:alarms"
    [policy] = properties("RedriveRole", AlarmTopicArn=topic)["Policies"]
    allowed = {each["Sid"]: each for each in statements(policy)}
    assert {*allowed} == {"Redrive", "Retry", "Log", "Archive", "Report"}
    sources = {target(properties(name)["Events"].popitem()[1]["Properties"]["Queue"]) for name in FUNCTIONS}
    assert {target(each) for each in allowed["Retry"]["Resource"]} == sources
    assert {target(each) for each in allowed["Redrive"]["Resource"]} == {*of_type("AWS::SQS::Queue")} - sources
    assert (allowed["Archive"]["Action"], allowed["Report"]["Resource"]) == ("s3:PutObject", topic)
    assert "*" not in str(policy).replace("/removed/*", "the objects it writes")
    [without_topic] = properties("RedriveRole")["Policies"]
    assert "Report" not in {each.get("Sid") for each in statements(without_topic)}


# guard


def test_the_guard_may_change_the_mappings_that_it_names_and_no_others_and_only_if_that_is_asked_for() -> None:
    given = RESOURCES["GuardFunction"]["Properties"]["Environment"]["Variables"]["GUARDED"]["Fn::Sub"]
    named = json.loads(re.sub(r"\$\{(.+?)\}", r"\1", given))
    standard = [name for name in FUNCTIONS if name != "LedgerFunction"]  # whose queue is FIFO
    mappings = [f"{name}{event}" for name in standard for event in RESOURCES[name]["Properties"]["Events"]]
    queues = [target(properties(name)["Events"].popitem()[1]["Properties"]["Queue"]) for name in standard]
    assert [(f"{each['consumer'].capitalize()}Function", each["mapping"], each["queue"]) for each in named] == [
        (name, mapping, f"{queue}.QueueName") for name, mapping, queue in zip(standard, mappings, queues, strict=True)
    ]
    [policy] = properties("GuardRole")["Policies"]
    allowed = {each["Sid"]: each for each in statements(policy)}
    assert {*allowed} == {"SuspendAndResume", "ReadMetricsAndMappings", "ReadRetention", "Log"}
    arn = "arn:aws:lambda:eu-west-1:123456789012:event-source-mapping:"
    assert allowed["SuspendAndResume"]["Resource"] == [f"{arn}uuid-of-{name}" for name in standard]
    assert [target(each) for each in allowed["ReadRetention"]["Resource"]] == queues
    conditions = [
        scope(OutageGuard=asked, ProvisionedPollers=pollers) for asked in ("true", "false") for pollers in "03"
    ]
    assert [each.condition("HasGuard", "") for each in conditions] == [True, False, False, False]
    of_guard = {name for name, each in RESOURCES.items() if each.get("Condition") == "HasGuard"}
    assert of_guard == {"GuardFunction", "GuardRole", "GuardAlarm"}


def test_the_guard_runs_every_minute_and_its_alarm_tells_of_three_minutes_without_a_good_run() -> None:
    function, alarm = properties("GuardFunction"), properties("GuardAlarm")
    [schedule] = function["Events"].values()
    assert schedule["Properties"]["ScheduleExpression"] == "rate(1 minute)"
    assert function["Timeout"] < 60
    assert alarm["Metrics"][0]["Expression"] == "runs - errors"
    assert (alarm["ComparisonOperator"], alarm["Threshold"], alarm["EvaluationPeriods"]) == ("LessThanThreshold", 1, 3)


# a function


def test_a_function_has_a_log_group_and_may_send_traces_only_if_that_is_asked_for(function: dict[str, Any]) -> None:
    group = target(function["LoggingConfig"]["LogGroup"])
    assert group == function["logical_id"].replace("Function", "LogGroup")
    assert int(properties(group)["RetentionInDays"]) == 30
    assert "xray:" not in str(properties(target(function["Role"])))
    assert "xray:PutTraceSegments" in str(properties(target(function["Role"]), Tracing="Active"))
    assert not {"Runtime", "Architectures"} & function.keys()


def test_functions_and_the_powertools_layer_are_for_one_python_on_arm() -> None:
    shared, layer = TEMPLATE["Globals"]["Function"], properties("PowertoolsLayer")
    assert (shared["LoggingConfig"]["LogFormat"], shared["Tracing"]) == ("JSON", {"Ref": "Tracing"})
    assert (shared["Runtime"], shared["Architectures"]) == ("python3.13", ["arm64"])
    assert (layer["CompatibleRuntimes"], layer["CompatibleArchitectures"]) == (["python3.13"], ["arm64"])


# alarms and the dashboard


def metric(name: str) -> tuple[str, str, str]:
    """Return the namespace, the metric and the resource of an alarm; of error lines, the log group is the resource."""
    found = properties(name)
    if "Metrics" in found:
        [metric] = [each["MetricStat"]["Metric"] for each in found["Metrics"] if each["Id"] == "errors"]
        found |= metric
    if "Dimensions" not in found:
        [filtered] = [properties(each) for each in of_type("AWS::Logs::MetricFilter") if each == found["MetricName"]]
        [counted] = filtered["MetricTransformations"]
        assert (counted["MetricNamespace"], counted["MetricName"]) == (found["Namespace"], found["MetricName"])
        assert (filtered["FilterPattern"], counted["MetricValue"]) == (ERROR_LINES, "1")
        return found["Namespace"], "lines", target(filtered["LogGroupName"])
    [dimension] = found["Dimensions"]
    return found["Namespace"], found["MetricName"], target(dimension["Value"])


def test_each_consumer_has_its_alarms(function: dict[str, Any], mapping: dict[str, Any], queue: dict[str, Any]) -> None:
    dead = target(queue["RedrivePolicy"]["deadLetterTargetArn"])
    found = {metric(name) for name in of_type("AWS::CloudWatch::Alarm")}
    assert found >= {
        ("AWS/SQS", "ApproximateNumberOfMessagesVisible", dead),
        ("AWS/SQS", "ApproximateAgeOfOldestMessage", target(mapping["Queue"])),
        ("AWS/Lambda", "Errors", function["logical_id"]),
        ("AWS/Lambda", "Throttles", function["logical_id"]),
        ("AWS/SQS", "ApproximateNumberOfMessagesNotVisible", target(mapping["Queue"])),
        ("shop", "lines", target(function["LoggingConfig"]["LogGroup"])),
    }
    assert len(of_type("AWS::CloudWatch::Alarm")) == 6 * len(FUNCTIONS) + 2  # and those of redrive and guard
    assert all(name in EMITTED[namespace] for namespace, name, _ in found if namespace.startswith("AWS/"))
    in_flight = f"{function['logical_id'].removesuffix('Function')}InFlightAlarm"
    assert properties(in_flight)["Threshold"] == 100_000 < IN_FLIGHT_LIMIT


def test_the_error_lines_of_tarry_and_of_a_function_are_counted_except_those_of_dead_letters(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unreadable signing key defers all webhooks, while Errors stays 0. Dead letters have an alarm of their own."""
    log = Log("orders", LogOptions())
    log.problem("unhandled", "no failure step handled the message")
    log.problem("dead_lettered", "the message is in orders-dlq")
    log.problem("missing_permission", "the role lacks a right", level=logging.WARNING)
    logging.getLogger("signing_key").error("No webhook is sent")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]  # as Lambda shows them
    errors = [line["message"] for line in lines if line["level"] == "ERROR"]
    assert len(lines) == 4
    assert [fnmatchcase(message, "dead_lettered *") for message in errors] == [False, True, False]


def test_an_alarm_notifies_the_topic_and_names_a_command_that_exists() -> None:
    topic, commands = "arn:aws:sns:eu-west-1:123456789012:alarms", set[str]()
    for name in of_type("AWS::CloudWatch::Alarm"):
        assert properties(name)["AlarmActions"] == []
        assert properties(name, AlarmTopicArn=topic)["AlarmActions"] == [topic]
        assert properties(name)["TreatMissingData"] == ("breaching" if name == "GuardAlarm" else "notBreaching")
        named = re.findall(r"(?:tarry|aws) [^;'\"]+", str(RESOURCES[name]["Properties"]["AlarmDescription"]))
        assert named, name
        commands |= {*named}
    for command in commands:
        program, *words = shlex.split(command)
        if program == "tarry":
            known = typer.main.get_command(app)
            while words and not words[0].startswith("-"):
                known = known.commands[words.pop(0)]  # type: ignore[attr-defined]
            options = {option for each in known.params for option in each.opts}
            assert {word for word in words if word.startswith("-")} <= options
            assert "--aws" not in words or "--stack" in words, "without it, the queues of other stacks are shown too"
        else:
            assert words[:2] in (["logs", "tail"], ["lambda", "get-account-settings"])


def test_the_age_alarm_fits_the_retries(function: dict[str, Any], queue: dict[str, Any], policy: RetryPolicy) -> None:
    """A standard queue leaves out of its age the messages received more than three times, so they do not count."""
    waits = waits_of(policy)
    threshold = properties(function["logical_id"].replace("Function", "AgeAlarm"))["Threshold"]
    if queue.get("FifoQueue"):
        assert threshold < sum(waits) / 2  # a group that stands still is seen before its head is given up
    else:
        assert sum(waits[:3]) < threshold < queue["MessageRetentionPeriod"]


def test_the_dashboard_has_every_consumer_and_only_metrics_that_are_emitted() -> None:
    """The metrics of AWS, and those of tarry in the namespace of the functions."""
    shared = TEMPLATE["Globals"]["Function"]["Environment"]["Variables"]
    assert shared["POWERTOOLS_METRICS_NAMESPACE"] == {"Ref": "AWS::StackName"}
    body, lists = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    for key, value in lists.items():
        separator, names = value["Fn::Join"]
        body = body.replace(f"${{{key}}}", separator.join(map(target, names)))
    seen: dict[tuple[str, str], set[str]] = {}
    of_tarry = set()
    for widget in json.loads(body)["widgets"]:
        if widget["type"] == "log":
            assert widget["properties"]["query"].startswith("SOURCE '${GuardLogGroup}' | ")
            continue
        metrics = widget["properties"]["metrics"]
        if "expression" in metrics[0][0]:
            for [each, *_] in metrics:
                search = r"SEARCH\('\{\"(.+)\",(\w+),(\w+)\} MetricName=\(?(.+?)\)?', '(Sum|p50|p99)', 60\)"
                found = re.fullmatch(search, each["expression"])
                assert found is not None, each
                assert (found[1], (found[2], found[3])) == ("${AWS::StackName}", DIMENSIONS)
                of_tarry |= {name.strip('"') for name in found[4].split(" OR ")}
            continue
        for before, after in pairwise(metrics):
            after[:] = [old if new == "." else new for old, new in zip(before, after, strict=True)]
        for namespace, name, dimension, value in metrics:
            assert name in EMITTED[namespace]
            assert dimension == DIMENSION[namespace]
            seen.setdefault((namespace, name), set()).add(value)
        assert len(metrics) == len(FUNCTIONS)
    assert seen["AWS/Lambda", "Errors"] == set(FUNCTIONS)
    assert seen["AWS/SQS", "ApproximateNumberOfMessagesVisible"] == set(of_type("AWS::SQS::Queue"))
    assert {"MessagesDeadLettered", "MessagesWaitingRetry", "AgeAtSettlement", "HandlerTime"} < of_tarry
    assert of_tarry < {each.name for each in METRICS}


# names, tags, and what is kept


def test_what_holds_data_stays_with_its_policy_when_the_stack_is_deleted_and_goes_only_if_its_creation_fails() -> None:
    """If the first deployment fails, queues that were kept would be in the way of the second."""
    for name, resource in RESOURCES.items():
        kept = (resource.get("DeletionPolicy"), resource.get("UpdateReplacePolicy"))
        expected = ("RetainExceptOnCreate", "Retain") if resource["Type"] in KEPT else (None, None)
        assert kept == expected, name


def test_a_layer_version_goes_with_the_deployment_that_replaces_it() -> None:
    layers = [each for each in translated()["Resources"].values() if each["Type"] == "AWS::Lambda::LayerVersion"]
    assert [each.get("DeletionPolicy") for each in layers] == ["Delete"] * len(of_type("AWS::Serverless::LayerVersion"))


def test_physical_names_begin_with_the_name_of_the_stack_unless_a_parameter_asks_for_plain_ones() -> None:
    named = {
        name: value
        for name, resource in RESOURCES.items()
        for key, value in properties(name).items()
        if NAME_PROPERTIES.fullmatch(key) and resource["Type"] not in ("AWS::IAM::Role", "AWS::Logs::MetricFilter")
    }
    assert {*named} >= {*of_type("AWS::SQS::Queue"), "Dashboard", "TarryLayer", "OrdersLogGroup"}
    assert all(value.lstrip("/").startswith("shop") for value in named.values()), named
    assert len(set(named.values())) == len(named)
    plain = {name: properties(name, PlainNames="true")["QueueName"] for name in of_type("AWS::SQS::Queue")}
    assert {f"shop-{value}" for value in plain.values()} == {named[name] for name in plain}
    assert plain["OrdersQueue"] == "orders"
    assert plain["LedgerDeadLetters"] == "ledger-dlq.fifo"
    text = PARAMETERS["PlainNames"]["Description"]
    assert f"of at most {79 - max(map(len, plain.values()))} characters" in text  # a queue's name has at most 80
    assert "replaces the queues by empty ones: their messages stay in the old queues" in text


def test_what_belongs_to_a_consumer_has_a_tag_with_its_name() -> None:
    tagged = {"AWS::SQS::Queue", "AWS::DynamoDB::Table", "AWS::S3::Bucket", "AWS::Logs::LogGroup"}
    for name, resource in RESOURCES.items():
        if resource["Type"] in {*tagged, "AWS::SecretsManager::Secret"} and name != "AttemptsTable":  # it is shared
            [tag] = resource["Properties"]["Tags"]
            assert tag["Key"] == "consumer"
            assert tag["Value"].capitalize() in [*CONSUMERS, "Redrive", "Guard"], name
    assert [RESOURCES[name]["Properties"]["Tags"]["consumer"].capitalize() for name in FUNCTIONS] == CONSUMERS


# parameters, outputs, samconfig.toml


def is_allowed(parameter: str, value: str) -> bool:
    """Whether CloudFormation accepts a value, before it makes anything."""
    declared = PARAMETERS[parameter]
    if "AllowedValues" in declared:
        return value in map(str, declared["AllowedValues"])
    if declared["Type"] == "Number":
        return bool(declared["MinValue"] <= float(value) <= declared["MaxValue"])
    return re.fullmatch(declared["AllowedPattern"], value) is not None


@pytest.mark.parametrize(
    ("parameter", "good", "bad"),
    [
        ("AlarmTopicArn", ["", "arn:aws-us-gov:sns:us-gov-west-1:123456789012:Alarms_1"],
         ["alarms", "arn:aws:sns:eu-west-1:123456789012:a.fifo", "arn:aws:sqs:eu-west-1:123456789012:a"]),
        ("QueueKeyArn", ["", "arn:aws:kms:eu-west-1:123456789012:key/mrk-12"],
         ["alias/queues", "arn:aws:kms:eu-west-1:123456789012:alias/queues", "1234"]),
        ("ProvisionedPollers", ["0", "2", "10", "199", "200"], ["", "1", "01", "201", "-2", "1000"]),
        ("MaximumConcurrency", ["2", "1000"], ["1", "1001", "0"]),
        ("LogRetentionDays", ["1", "3653"], ["0", "2", "9999"]),
        ("Tracing", ["Active", "PassThrough"], ["", "active", "Disabled"]),
        ("PlainNames", ["true", "false"], ["", "yes"]),
        ("OutageGuard", ["true", "false"], ["", "yes"]),
        ("AllowPrivateAddresses", ["true", "false"], ["", "no"]),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_refused_before_anything_is_made(
    parameter: str, good: list[str], bad: list[str]
) -> None:
    assert [value for value in good if not is_allowed(parameter, value)] == []
    assert [value for value in bad if is_allowed(parameter, value)] == []


def test_every_parameter_has_limits_a_default_within_them_and_a_place_in_the_console() -> None:
    assert all(is_allowed(name, str(parameter["Default"])) for name, parameter in PARAMETERS.items())
    assert all("ConstraintDescription" in each for each in PARAMETERS.values() if "AllowedPattern" in each)
    groups = TEMPLATE["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
    assert sorted(name for group in groups for name in group["Parameters"]) == sorted(PARAMETERS)


def test_the_outputs_keep_their_names() -> None:
    urls = [f"{name}{kind}Url" for name in ("Orders", "Ledger", "Scans") for kind in ("Queue", "DeadLetters")]
    webhooks = ["WebhooksQueueUrl", "WebhooksDeadLettersUrl", "WebhooksSigningSecretArn"]
    assert [*TEMPLATE["Outputs"]] == [*urls, "DigestBucketName", *webhooks, "ArchiveBucketName"]


def test_samconfig_has_stacks_of_their_own_and_allowed_values_but_prod_is_refused_until_it_names_a_topic() -> None:
    config = tomllib.loads((ROOT / "samconfig.toml").read_text())
    sections = {name: section for name, section in config.items() if isinstance(section, dict)}
    assert {*sections} == {"default", "dev", "prod"}
    assert len({section["global"]["parameters"]["stack_name"] for section in sections.values()}) == 3
    for section in sections.values():
        given = " ".join(each["parameters"].get("parameter_overrides", "") for each in section.values())
        refused = [each for each in shlex.split(given) if not is_allowed(*each.split("=", 1))]
        # prod is not deployed before its alarms notify someone
        assert refused == (["AlarmTopicArn=arn:aws:sns:REGION:ACCOUNT:TOPIC"] if section is sections["prod"] else [])
    for name in ("dev", "prod"):
        assert f"environment={name}" in sections[name]["deploy"]["parameters"]["tags"]
