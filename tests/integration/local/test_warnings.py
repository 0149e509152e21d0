"""Warnings at the start of `tarry local`, before it receives messages."""

import sys

import pytest

from tarry.tools.check.finding import Finding
from tarry.tools.cli.errors import text_of

from .conftest import Project

HERE = f"3.{sys.version_info.minor}"


@pytest.mark.parametrize("skip", [["--skip-time"], []])
def test_what_would_fail_at_aws_is_a_warning_of_one_line_and_the_run_is_the_same(
    project: Project, skip: list[str]
) -> None:
    project.edit("template.yaml", f"Runtime: python{HERE}", "Runtime: python3.10")
    project.edit("template.yaml", '      Layers: ["arn:aws:lambda:us-east-1:123456789012:layer:tarry:1"]\n', "")
    project.edit("template.yaml", "      Policies: [SQSPollerPolicy: {QueueName: !GetAtt Entries.QueueName}]\n", "")
    project.edit("plain/app.py", "import json, os", "import json, os, requests")
    project.send()
    result = project.run(*skip)
    assert result.exit_code == 0
    assert "Warning" not in result.stdout
    lines = result.stderr.splitlines()
    warnings = [line for line in lines if line.startswith("Warning: ")]
    assert warnings == [
        f"Warning: Functions run under Python {HERE} here; the template says python3.10. "
        "tarry needs Python 3.11 or later: update the Runtime.",
        f"Warning: Plain imports requests ({project.folder}/plain/app.py:2), which its build does not contain. "
        f"Add requests to {project.folder}/plain/requirements.txt.",
        f"Warning: Ordered imports tarry ({project.folder}/ordered/app.py:4), which its build does not contain. "
        "Add the tarry layer to its Layers.",
        f"Warning: Ordered ({project.folder}/template.yaml:28) lacks sqs:ChangeMessageVisibility on Entries.fifo: "
        "failed messages come back when the queue's visibility timeout ends, not after their delay. "
        "Add to its Policies:",
        "Warning: Ordered consumes Entries.fifo with the default max_attempts of 5: with the default delay of 30 s, an "
        "outage of more than 2 minutes dead-letters the first messages of each group, and the messages behind them "
        "run. Set BatchSize: 1, so that receives behind a failing message use up no attempts, and max_attempts for the "
        "longest outage (40 for 15 minutes).",
    ]
    assert lines[4] == "  - SQSPollerPolicy: {QueueName: !GetAtt Entries.QueueName}"
    assert result.stderr.startswith("Warning: ")


def test_a_function_that_does_not_run_gets_no_warning(project: Project) -> None:
    project.edit("plain/app.py", "import json, os", "import json, os, requests")
    project.edit("ordered/app.py", "@consumer(", "@consumer(max_attempts=40, ")
    project.send("Entries.fifo", group="a")
    result = project.run("--skip-time", "Ordered")
    assert (result.exit_code, "Warning" in result.stderr) == (0, False)


def test_on_a_terminal_a_warning_is_wrapped_and_the_lines_to_add_are_not() -> None:
    snippet = "- Statement: {Effect: Allow, Action: sqs:SendMessage, Resource: arn:aws:sqs:eu-west-1:123456789012:dlq}"
    finding = Finding(
        "W9003", ("Orders",), f"Orders lacks {'permissions ' * 6}on the queue. Add to its Policies:", snippet
    )
    assert text_of(finding, 80).splitlines() == [
        "Warning: Orders lacks permissions permissions permissions permissions",
        "  permissions permissions on the queue. Add to its Policies:",
        f"  {snippet}",
    ]
    assert text_of(finding, None) == f"Warning: {finding.text}\n  {snippet}"
