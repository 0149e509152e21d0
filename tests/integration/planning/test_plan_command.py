"""`tarry plan` as a command: its sources, its output, its picture, and bad input."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app

TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: {Handler: app.handler, Runtime: python3.13, Timeout: 10, CodeUri: code, MemorySize: 512}
Resources:
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: jobs-dlq}}
  Jobs:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: jobs
      VisibilityTimeout: 60
      MessageRetentionPeriod: 86400
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 3}
  Ordered: {Type: AWS::SQS::Queue, Properties: {QueueName: ordered.fifo, FifoQueue: true, VisibilityTimeout: 60}}
  Orders:
    Type: AWS::Serverless::Function
    Properties:
      Environment: {Variables: {TABLE: tables-name}}
      Events:
        Jobs: {Type: SQS, Properties: {Queue: !GetAtt Jobs.Arn, ScalingConfig: {MaximumConcurrency: 5}}}
        Ordered: {Type: SQS, Properties: {Queue: !GetAtt Ordered.Arn}}
  Batches: {Type: AWS::Serverless::Function, Properties: {Handler: batches.handler, EVENT}}
  Undecorated: {Type: AWS::Serverless::Function, Properties: {Handler: batches.record_handler, EVENT}}
  Exits: {Type: AWS::Serverless::Function, Properties: {Handler: exits.handler, EVENT}}
  Broken: {Type: AWS::Serverless::Function, Properties: {Handler: broken.handler, EVENT}}
  Idle: {Type: AWS::Serverless::Function}
""".replace("EVENT", "Events: {Jobs: {Type: SQS, Properties: {Queue: !GetAtt Jobs.Arn}}}")
CODE = """
import os
from functools import wraps
from tarry import DeadLetter, Fixed, LocalRetry, Message, RetryInPlace, SendAgain, consumer

print("printed at import", os.environ.get("TABLE"))
assert "TABLE" not in os.environ or os.environ["TABLE"] == "tables-name"

def decorated(function):
    return wraps(function)(lambda event, context: function(event, context))

@decorated
@consumer(
    max_attempts=4, backoff=Fixed(90),
    on_failure={
        "default": [RetryInPlace(), DeadLetter()],
        "jobs": [LocalRetry(2, delay=1), RetryInPlace(), SendAgain("later", delay=600), DeadLetter()],
    },
)
def handler(message: Message) -> None: ...

def plain(event, context): ...
"""
BATCHES = """
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType, process_partial_response

processor = BatchProcessor(event_type=EventType.SQS)

def record_handler(record): ...

def handler(event, context):
    return process_partial_response(event=event, record_handler=record_handler, processor=processor, context=context)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "template.yaml": TEMPLATE,
        "code/app.py": CODE,
        "code/batches.py": BATCHES,
        "code/exits.py": "import os\nos._exit(7)",
        "code/broken.py": "import nowhere",
        "code/platform.py": "raise AssertionError('not the module of Python')",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def plan(*arguments: str, exits: int = 0) -> Result:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == exits, result.output
    return result


def texts_in(picture: Path) -> list[str]:
    return [each.text or "" for each in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]


def test_a_function_of_the_template_has_a_timeline_for_each_of_its_queues(project: Path) -> None:
    result = plan("Orders")
    jobs, ordered = result.stdout.split("\n\n\n")
    assert jobs.startswith("Orders on jobs\nmax_attempts=4, backoff=Fixed(90)")
    assert "retention 1 d, maxReceiveCount 3, dead-letter queue" in jobs
    assert "copy later 1/1" in jobs
    assert "with waits of 2 s in all" in jobs
    assert ordered.startswith("Orders on ordered.fifo")
    assert "stays" in ordered
    assert "maxReceiveCount is 3, below max_attempts (4)" in result.stderr
    assert "There is no dead-letter queue" in result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_has_all_attempts_and_a_load_with_the_settings_of_the_mapping(project: Path) -> None:
    picture = project / "plan.svg"
    result = plan("Orders", "-q", "Jobs", "--rate", "2/s", "--outage", "2m", "--json", "--svg", str(picture))
    found = json.loads(result.stdout)
    assert [(each["attempt"], each["latest"], each["runs"], each["then"]) for each in found["attempts"]] == [
        (1, 0, 3, "retry"),
        (2, 92, 3, "retry"),
        (3, 184, 1, "copy"),
        (4, 784, 1, "dead_letter"),
    ]
    assert found["end"] == {"how": "dead_letter", "queue": "jobs-dlq", "earliest": 784, "latest": 784}
    load = found["load"]
    assert (load["rate"], load["failing"], load["seeds"]) == (2, 1, [0, 1, 2, 3, 4])
    assert load["peak_waiting"]["lowest"] <= load["peak_waiting"]["mean"] <= load["peak_waiting"]["highest"]
    texts = texts_in(picture)
    assert "Orders on jobs" in texts
    assert any(text.startswith("Load: 2 messages/s") for text in texts)
    assert "up to 5 invocations at once" in " ".join(texts)


def test_a_function_of_powertools_has_its_timeline_today_above_that_of_tarrys_defaults(project: Path) -> None:
    picture = project / "plan.svg"
    result = plan("Batches", "--svg", str(picture))
    today, with_tarry = result.stdout.split("\n\n\n")
    assert today.startswith("Batches without tarry on jobs\nnot a consumer of tarry: SQS delivers")
    assert "3        1 min         2 min     2 min   moved by SQS" in today
    assert with_tarry.startswith("Batches with tarry's defaults on jobs\nmax_attempts=5, backoff=Exponential(30")
    assert "maxReceiveCount is 3, below max_attempts (5)" in result.stderr
    assert {"Batches without tarry on jobs", "Batches with tarry's defaults on jobs"} <= {*texts_in(picture)}
    found = json.loads(plan("Batches", "--json").stdout)
    assert found["end"]["how"] == "dead_letter"
    assert found["today"]["end"] == {"how": "moved", "queue": "jobs-dlq", "earliest": 180, "latest": 180}


def test_a_consumer_of_a_module_needs_no_template(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "code")
    result = plan("app.handler")
    assert result.stdout.startswith("app.handler\nmax_attempts=4")
    assert "queue not known; SQS's defaults" in result.stdout
    assert "printed" not in result.stdout
    plain = "app.plain is not a consumer of tarry, but a function: is its @consumer missing?"
    assert plain in plan("app.plain", exits=2).stderr
    assert "app has no attribute nope; its consumers are handler" in plan("app.nope", exits=2).stderr


def test_a_backoff_alone_is_simulated_with_its_assumptions(project: Path) -> None:
    result = plan(*"--backoff Fixed(30) --max-attempts 3 --rate 5/s --failing 20% --outage 1m".split())
    assert "During an outage of 1 min, 20% of the messages that arrive" in " ".join(result.stdout.split())
    assert "Simulated 5 times (seeds 0 to 4): mean (lowest to highest)." in result.stdout
    for name in ("waiting for a retry, at most", "drained after", "dead letters", "requests to SQS", "invocations"):
        assert f"\n{name} " in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_load_is_printed_and_drawn_without_and_with_the_outage_guard(project: Path) -> None:
    arguments, picture = "--backoff Fixed(120) --rate 2/s --outage 12m --guard".split(), project / "plan.svg"
    text = plan(*arguments, "--svg", str(picture)).stdout
    assert max(map(len, text.splitlines())) <= 80
    alone, guarded = text.split("The same load with the outage guard:")
    assert "dead letters                  0" in guarded
    assert "dead letters                  0" not in alone
    assert " suspended after 3 min, 2 probes, resumed\n  after 26 min.\n" in guarded
    assert texts_in(picture).count("dead letters so far") == 2
    found = json.loads(plan(*arguments, "--json").stdout)
    assert found["load"]["dead_letters"]["lowest"] > found["with_guard"]["dead_letters"]["highest"] == 0
    assert found["with_guard"]["phases"][0] == {"at": 180, "phase": "suspended"}
    assert found["with_guard"]["phases"][-1]["phase"] is None


NO_QUEUE = "Resources: {Jobs: {Type: AWS::SQS::Queue}}"
FUNCTIONS = "Orders, Batches, Undecorated, Exits, Broken"


BAD_INPUT = [
    ("Nope", "template.yaml has no function Nope; functions with a queue are Orders, Batches, "),
    ("other/template.yml", "other/template.yml is not a function: for a template, give --template other/template"),
    ("Idle", f"Idle has no SQS event; functions with one are {FUNCTIONS}"),
    ("", f"name a function of template.yaml with a queue: {FUNCTIONS}; or give a"),
    ("-t none.yaml", "tarry: no function of none.yaml has an SQS event: give a backoff (--backoff)\n"),
    ("Undecorated", "Undecorated is not a consumer of tarry, but a function: is its @consumer missing?"),
    ("Exits", "Exits: its code ends the process at import (exit status 7)"),
    ("Broken", "ModuleNotFoundError: No module named 'nowhere'"),
    ("nowhere.handler", "nowhere cannot be imported here: ModuleNotFoundError"),
    ("Orders --queue other", "Orders has no queue other; its queues are jobs, ordered.fifo"),
    ("Orders --rate 5/s --outage 1m", "--rate takes one queue, and the function has several: add --queue"),
    ("Orders -q ordered.fifo --rate 5/s --outage 1m", "cannot be simulated on the FIFO queue ordered.fifo"),
    ("Orders -q jobs --rate 5/s --outage 1d", "--outage of 1 d is not shorter than the retention of jobs, 1 d"),
    ("--backoff Fixed(3) --rate 9999/s --outage 3d", "until the last retry of the outage, too many to simulate"),
    ("--backoff Fixed(3) --rate 0/s --outage 1m", "--rate must be messages in a time, above 0, such as 50/s"),
    ("--backoff Fixed(3) --rate 5/s", "--rate and --outage belong together: add --outage 15m"),
    ("--backoff Fixed(3) --outage 5m", "--rate and --outage belong together: add --rate 50/s"),
    ("--backoff Fixed(3) --guard", "--guard needs a load and an outage: add --rate 50/s --outage 45m"),
    ("--backoff Fixed(3) Orders", "--backoff takes no FUNCTION"),
    ("--backoff Fixed(1e9,", "it is not an expression of Python"),
    ("--max-attempts 3", "--max-attempts needs --backoff"),
    ("--backoff Fixed(3) --svg nowhere/plan.svg", "there is no directory nowhere"),
]


def test_bad_input_is_one_line_and_exit_code_2(project: Path) -> None:
    (project / "none.yaml").write_text(NO_QUEUE)
    for arguments, why in BAD_INPUT:
        result = plan(*arguments.split(), exits=2)
        assert (result.stdout, why in result.stderr) == ("", True), result.stderr
