"""One consumer, made by SAM, CDK and Terraform: each example of the documentation has what production needs.

The libraries of CDK are large, so `make cdk` installs them in an environment of their own.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hcl2
import pytest
from samtranslator.yaml_helper import yaml_parse
from typer.testing import CliRunner

from tarry.tools.cli.app import app
from tarry.tools.template.model import Template
from tarry.tools.template.reader import read_template
from tests.pages import PAGES, ROOT

CDK = ROOT / "build" / "cdk" / "bin" / "python"
SAM_PAGE, OTHERS_PAGE = "docs/guides/deploying.md", "docs/guides/cdk-and-terraform.md"
MAX_ATTEMPTS = 5
ON_ITS_QUEUE = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility", "sqs:GetQueueAttributes"}
ON_DEAD_LETTERS = {"sqs:SendMessage", "sqs:GetQueueAttributes"}


READY: dict[str, Any] = {
    "reports_failures": True,  # or Lambda would delete failed messages
    "log_level": "INFO",  # or Lambda would drop the lines at INFO
    "dead_letter_retention": 14 * 24 * 3600,
    "on_its_queue": ON_ITS_QUEUE,
    "on_dead_letters": ON_DEAD_LETTERS,
    "alarm": {
        "MetricName": "ApproximateNumberOfMessagesVisible",
        "ComparisonOperator": "GreaterThanThreshold",
        "Threshold": 0,
        "Statistic": "Maximum",
        "TreatMissingData": "notBreaching",
    },
}


def assert_ready_for_production(
    *, visibility_timeout: int, timeout: int, window: int, receives: int, **example: Any
) -> None:
    """Check the settings of an example, whatever its tool calls them."""
    assert visibility_timeout >= 6 * timeout + window
    assert receives >= 2 * MAX_ATTEMPTS + 5, "SQS would take messages away before the last attempt"
    found = {name: value & READY[name] if isinstance(value, set) else value for name, value in example.items()}
    assert found == READY


def block(page: str, language: str) -> str:
    """Return the first code block of a page in a language."""
    (found,) = (each for each in PAGES if each.name == page)
    return next(each.text for each in found.blocks if each.language == language)


def test_the_guide_names_each_parameter_of_the_template_with_its_default() -> None:
    (guide,) = (page.text for page in PAGES if page.name == "docs/guides/template.md")
    shown = dict(re.findall(r"^\| `(\w+)` \| `?([\w-]+)`? \|", guide, re.MULTILINE))
    parameters = yaml_parse((ROOT / "template.yaml").read_text())["Parameters"]
    assert shown == {name: str(each["Default"]) or "none" for name, each in parameters.items()}


# SAM and CDK


def test_the_sam_example_has_what_production_needs(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(block(SAM_PAGE, "yaml"))
    resources = yaml_parse(block(SAM_PAGE, "yaml"))["Resources"]
    assert_ready_for_production(**of_template(read_template(tmp_path / "template.yaml"), resources))


def test_the_steps_of_the_dockerfile_make_a_directory_from_which_the_handler_is_imported(tmp_path: Path) -> None:
    """As far as this can be seen without Docker and the image from which it begins."""
    function, task = tmp_path / "functions" / "orders", tmp_path / "task"
    function.mkdir(parents=True)
    (function / "app.py").write_text(block(SAM_PAGE, "python"))
    (function / "requirements.txt").touch()
    (tmp_path / "layers").symlink_to(ROOT / "layers")
    begin, *steps, end = block(SAM_PAGE, "dockerfile").replace("\\\n", " ").splitlines()
    assert begin.startswith("FROM public.ecr.aws/lambda/python:3.")
    task.mkdir()
    variables = {
        "LAMBDA_TASK_ROOT": str(task),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for kind, _, text in (each.partition(" ") for each in steps):
        source, _, target = text.partition(" ")  # COPY has the contents of a directory
        command = text if kind == "RUN" else f"mkdir -p {target} && cp -R {source}/. {target}"
        subprocess.run(command, shell=True, cwd=task if kind == "RUN" else tmp_path, env=variables, check=True)
    assert not (task / "tarry" / "tools").exists()
    assert list((task / "tarry").rglob("__pycache__/consumer.*.pyc")), "the file system is read-only on Lambda"
    module, name = json.loads(end.removeprefix("CMD "))[0].split(".")
    program = f"import {module}, tarry; print({module}.{name}, tarry.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", program], cwd=task, env={}, check=True, capture_output=True, text=True
    )
    assert shown.stdout == f"<Consumer app.handler> {task / 'tarry' / '__init__.py'}\n"


def test_the_cdk_example_has_what_production_needs_and_is_read_by_tarry_local(tmp_path: Path) -> None:
    if not CDK.exists():
        pytest.skip("the libraries of CDK are not installed: make cdk")
    (tmp_path / "app.py").write_text(block(OTHERS_PAGE, "python"))
    (tmp_path / "build" / "orders").mkdir(parents=True)  # as the page builds it
    (tmp_path / "build" / "orders" / "app.py").write_text(block(SAM_PAGE, "python"))
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "tarry").symlink_to(ROOT / "layers" / "tarry")
    subprocess.run([CDK, "app.py"], cwd=tmp_path, env={"CDK_OUTDIR": "cdk.out"}, check=True, capture_output=True)
    path = tmp_path / "cdk.out" / "Orders.template.json"
    template = read_template(path)
    (function,) = template.functions.values()
    assert (template.not_played, template.left_out) == ((), ())
    assert function.code is not None
    assert (function.code / "app.py").exists()
    assert (function.layers[0] / "python" / "tarry" / "consumer.py").exists()
    assert_ready_for_production(**of_template(template, json.loads(path.read_text())["Resources"]))
    assert_checked_with_its_lines_and_code(path)


def assert_checked_with_its_lines_and_code(path: Path) -> None:
    """`tarry check` has no findings in the output of CDK; it has one for each mistake, at its line."""
    assert CliRunner().invoke(app, ["check", str(path.parent)]).stdout.startswith(f"{path}: no findings in ")
    mistakes = [  # what is right, what is wrong, the rule, its line if it is not what is wrong
        ('"VisibilityTimeout": 181', '"VisibilityTimeout": 20', "E9011", None),
        ('"maxReceiveCount": 15', '"maxReceiveCount": 3', "W9004", None),  # the code makes 5 attempts
        ('"MessageRetentionPeriod": 1209600', '"MessageRetentionPeriod": 3600', "W9016", None),
        ('"ReportBatchItemFailures"', "", "E9010", '"FunctionResponseTypes": ['),
    ]
    text = path.read_text()
    for right, wrong, _, _ in mistakes:
        text = text.replace(right, wrong)
    path.write_text(text)
    found = json.loads(CliRunner().invoke(app, ["check", str(path.parent), "--format", "json"]).stdout)
    lines = text.splitlines()
    at = {(each["rule"], lines[each["line"] - 1].strip(" ,")) for each in found["findings"]}
    assert (found["skipped"], at) == ([], {(rule, line or wrong) for _, wrong, rule, line in mistakes})


def of_template(template: Template, resources: Mapping[str, Any]) -> dict[str, Any]:
    (mapping,) = template.mappings
    function, queue = template.functions[mapping.function], template.queues[mapping.queue]
    (dead_letters,) = (each for each in template.queues.values() if each.arn == queue.dead_letter_arn)
    (alarm,) = (each["Properties"] for each in resources.values() if each["Type"] == "AWS::CloudWatch::Alarm")
    permissions = function.permissions
    assert permissions is not None
    return {
        "visibility_timeout": queue.visibility_timeout_seconds,
        "timeout": function.timeout_seconds,
        "window": mapping.window_seconds,
        "receives": queue.max_receive_count,
        "dead_letter_retention": int(dead_letters.attributes["MessageRetentionPeriod"]),
        "reports_failures": mapping.reports_failures,
        "log_level": function.log_level,
        "on_its_queue": {each for each in ON_ITS_QUEUE if permissions.allow(each, queue.name)},
        "on_dead_letters": {each for each in ON_DEAD_LETTERS if permissions.allow(each, dead_letters.name)},
        "alarm": {name: alarm[name] for name in READY["alarm"]},
    }


# Terraform


def test_the_terraform_example_has_what_production_needs_and_refers_to_nothing_that_it_lacks() -> None:
    text = block(OTHERS_PAGE, "hcl")
    document = plain(hcl2.loads(text))
    resources = {f"{kind}.{name}": found for kind, name, found in declared(document["resource"])}
    data = {f"data.{kind}.{name}": found for kind, name, found in declared(document["data"])}
    values = document["locals"][0]
    references = set(re.findall(r"(?<![\w.])(?:data\.\w+|aws_\w+)\.\w+(?=\.)", text))
    assert references == {*resources, *data} & references
    assert set(re.findall(r"\blocal\.(\w+)", text)) == {each for each in values if not each.startswith("__")}

    mapping = resources["aws_lambda_event_source_mapping.orders"]
    queue, dead_letters = resources["aws_sqs_queue.orders"], resources["aws_sqs_queue.dead_letters"]
    function, alarm = resources["aws_lambda_function.orders"], resources["aws_cloudwatch_metric_alarm.dead_letters"]
    (received,) = re.findall(r"maxReceiveCount = ([^,}]+)", queue["redrive_policy"])
    assert "deadLetterTargetArn = aws_sqs_queue.dead_letters.arn" in queue["redrive_policy"]
    (logging,) = function["logging_config"]
    assert logging["log_format"] == "JSON"
    assert_ready_for_production(
        visibility_timeout=number(queue["visibility_timeout_seconds"], values),
        timeout=number(function["timeout"], values),
        window=number(mapping["maximum_batching_window_in_seconds"], values),
        receives=number(received, values),
        dead_letter_retention=dead_letters["message_retention_seconds"],
        reports_failures=mapping["function_response_types"] == ["ReportBatchItemFailures"],
        log_level=logging["application_log_level"],
        on_its_queue=allowed(data, "aws_sqs_queue.orders"),
        on_dead_letters=allowed(data, "aws_sqs_queue.dead_letters"),
        alarm={name: alarm[re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()] for name in READY["alarm"]},
    )


def plain(value: Any) -> Any:
    """Return a parsed value with its strings and names without their quotes."""
    if isinstance(value, dict):
        return {name.strip('"'): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.removeprefix('"').removesuffix('"') if isinstance(value, str) else value


def declared(blocks: list[dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    return ((kind, name, found) for each in blocks for kind, named in each.items() for name, found in named.items())


def number(expression: Any, values: Mapping[str, int]) -> int:
    """Return the value of an expression of numbers and local values."""
    text = re.sub(r"local\.(\w+)", lambda name: str(values[name[1]]), str(expression).strip("${}"))
    assert re.fullmatch(r"[\d +*]+", text), f"not an expression of numbers: {expression}"
    return int(eval(text))  # only digits, + and *


def allowed(data: Mapping[str, Any], queue: str) -> set[str]:
    statements = data["data.aws_iam_policy_document.orders"]["statement"]
    return {action for each in statements if each["resources"] == [f"${{{queue}.arn}}"] for action in each["actions"]}
