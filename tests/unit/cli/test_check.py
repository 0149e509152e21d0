"""`tarry check`: its output, its exit codes, `--fix`, and input that cannot be read."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from docs.generator.rules import write_example
from tarry.tools.cli.app import app
from tarry.tools.template.document import load_document
from tarry.tools.template.reader import translate

ROOT = Path(__file__).parents[3]
QUEUES = """
  Queue:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: 20 # seconds
      RedrivePolicy: {deadLetterTargetArn: !GetAtt Dlq.Arn, maxReceiveCount: 15}
  Dlq: {Type: AWS::SQS::Queue, Properties: {MessageRetentionPeriod: 1209600}}
  Alarm:
    Type: AWS::CloudWatch::Alarm
    Properties:
      Namespace: AWS/SQS
      MetricName: ApproximateNumberOfMessagesVisible
      Dimensions: [{Name: QueueName, Value: !GetAtt Dlq.QueueName}]
"""
FUNCTION = """
  Consumer:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: src
      Handler: app.handler
      Runtime: python3.13
      Timeout: 10
      Layers: ['arn:aws:lambda:us-east-1:123456789012:layer:shop-tarry:3']
      Role: arn:aws:iam::123456789012:role/consumer
      Events:
        Messages:
          Type: SQS
          Properties: {Queue: !GetAtt Queue.Arn}
"""
NO_FINDINGS = "template.yaml: no findings in 2 queues and 1 function with a queue."
TEMPLATE = f"Transform: AWS::Serverless-2016-10-31\nResources:{FUNCTION}{QUEUES}"
TIME = "Parameters: {Time: {Type: Number, Default: 60}}"
HANDLER = "from tarry import Message, consumer\n@consumer(max_attempts=5)\ndef handler(message: Message) -> None: ...\n"


@pytest.fixture(autouse=True)
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def check(*arguments: str, exits: int | None = None) -> Result:
    result = CliRunner().invoke(app, ["check", *arguments])
    assert exits in (None, result.exit_code), result.output
    return result


def write(*edits: tuple[str, str], more: str = "", code: str = HANDLER) -> str:
    """Write the template, with texts replaced at their first place, and the code; return the template."""
    template = TEMPLATE
    for old, new in edits:
        assert old in template
        template = template.replace(old, new, 1)
    Path("template.yaml").write_text(template + more)
    Path("src").mkdir(exist_ok=True)
    Path("src/app.py").write_text(code)
    return template + more


def fixed(template: str = "template.yaml", *, exits: int | None = None) -> str:
    """Fix the findings of a template without a question; return its text."""
    check(template, "--fix", "--force", exits=exits)
    return Path(template).read_text()


def rules(*arguments: str, at: str = "template.yaml") -> list[str]:
    """Return the rules of the findings at a place."""
    lines = check(*arguments).stdout.splitlines()
    return [line.split()[1] for line in lines if re.match(rf"{re.escape(at)}:.* [EW]\d", line)]


def test_the_template_of_this_repository_and_that_of_tarry_init_have_no_findings() -> None:
    check(str(ROOT / "template.yaml"), exits=0)
    assert CliRunner().invoke(app, ["init", "project"]).exit_code == 0
    result = check("project/template.yaml", exits=0)
    assert (result.stdout, result.stderr) == (f"project/{NO_FINDINGS}\n", "")


def test_a_finding_has_its_place_its_reason_and_what_to_write() -> None:
    write()
    assert check(exits=1).stdout == (
        "template.yaml:15: E9010 Lambda ignores which messages Consumer reports as failed, and deletes the whole "
        "batch: failed messages are lost. Set in the event Messages of Consumer:\n"
        "    FunctionResponseTypes: [ReportBatchItemFailures]\n\n"
        "template.yaml:20: W9012 Queue has a VisibilityTimeout of 20 s, below six times the Timeout of 10 s of "
        "Consumer: a batch that is throttled or waits for its invocation is delivered again while it runs. Set:\n"
        "    VisibilityTimeout: 60\n\n"
        "template.yaml: 1 error and 1 warning. To fix 2: tarry check --fix\n"
    )


def test_the_formats_for_programs_have_the_same_findings() -> None:
    write(code="def handler(event, context:")
    found = json.loads(check("--format", "json").stdout)
    assert [(each["rule"], each["level"], each["file"], each["line"]) for each in found["findings"]] == [
        ("W9012", "warning", "template.yaml", 20)
    ]
    problem = "src/app.py does not parse: line 1: '(' was never closed"
    skipped = f"{problem}. The rules that need the code of Consumer are skipped."
    assert found["skipped"] == [skipped]
    [run] = json.loads(check("--format", "sarif").stdout)["runs"]
    [result] = run["results"]
    place = {"artifactLocation": {"uri": "template.yaml"}, "region": {"startLine": 20}}
    assert (result["ruleId"], result["locations"]) == ("W9012", [{"physicalLocation": place}])
    assert {each["id"] for each in run["tool"]["driver"]["rules"]} > {"W9012", "E9010"}
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == skipped
    first, second = check("--format", "github").stdout.splitlines()
    assert first.startswith("::warning file=template.yaml,line=20,title=W9012::Queue has a VisibilityTimeout of 20 s")
    assert first.endswith("Set:%0AVisibilityTimeout: 60")
    assert second.startswith("::notice title=tarry check::Skipped: src/app.py does not parse")
    Path("100% c:d").mkdir()
    Path("template.yaml").rename("100% c:d/template.yaml")
    [run] = json.loads(check("100% c:d/template.yaml", "--format", "sarif").stdout)["runs"]
    [uri] = {each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for each in run["results"]}
    assert uri == "100%25%20c%3Ad/template.yaml", "places of SARIF are URIs"


# --fix


def test_fix_shows_its_changes_asks_and_changes_only_those_lines() -> None:
    write()
    asked = check("--fix", exits=1)
    assert "-      VisibilityTimeout: 20 # seconds\n+      VisibilityTimeout: 60 # seconds\n" in asked.stdout
    assert "Not asked, because stdin is not a terminal" in asked.stderr
    assert Path("template.yaml").read_text() == TEMPLATE
    assert check("--fix", "--force", exits=0).stdout.splitlines()[-1] == NO_FINDINGS
    assert Path("template.yaml").read_text() == TEMPLATE.replace("Timeout: 20", "Timeout: 60").replace(
        "{Queue: !GetAtt", '{FunctionResponseTypes: ["ReportBatchItemFailures"], Queue: !GetAtt'
    )


def test_fix_leaves_intrinsics_and_values_that_several_places_share() -> None:
    event = "Properties: {Queue: !GetAtt Queue.Arn}"
    write(("VisibilityTimeout: 20", "VisibilityTimeout: &time 20"), (event, event.replace(":", ": &event", 1)))
    assert "no finding has a safe answer" not in check("--fix", "--force").stderr  # the event can be changed
    assert "VisibilityTimeout: &time 20" in Path("template.yaml").read_text()
    write(
        ("VisibilityTimeout: 20", "VisibilityTimeout: !Ref Time"),
        ("Resources:", f"{TIME.replace('60', '20')}\nResources:"),
        code="def handler(event, context): ...",
    )
    assert "no finding has a safe answer" in check("--fix", "--force").stderr
    before = "Properties:\n      VisibilityTimeout"
    merged = "  Other:\n    Type: AWS::SQS::Queue\n    Properties: {<<: *queue}\n"
    write((before, before.replace(":", ": &queue", 1)), more=merged)
    assert "VisibilityTimeout: 20" in fixed()


def test_fix_adds_several_properties_to_one_place() -> None:
    write(("{Queue: !GetAtt Queue.Arn}", "{Queue: !GetAtt Queue.Arn, BatchSize: 50}"))
    assert rules(at="template.yaml:15") == ["E9010", "E9025"]
    added = '{FunctionResponseTypes: ["ReportBatchItemFailures"], MaximumBatchingWindowInSeconds: 1, Queue:'
    assert added in fixed()


@pytest.mark.parametrize("visibility", [20, 60, 90, "!Ref Time"])
def test_fix_makes_no_finding_of_its_own(visibility: int | str) -> None:
    """The window that a large batch needs is part of the visibility timeout that AWS recommends."""
    mapping = "{Queue: !GetAtt Queue.Arn, BatchSize: 50, FunctionResponseTypes: [ReportBatchItemFailures]}"
    write(
        ("{Queue: !GetAtt Queue.Arn}", mapping),
        ("Resources:", f"{TIME}\nResources:"),
        ("VisibilityTimeout: 20", f"VisibilityTimeout: {visibility}"),
    )
    result, after = check("--fix", "--force"), Path("template.yaml").read_text()
    if visibility == "!Ref Time":  # the parameter is yours to change
        assert "no finding has a safe answer" in result.stderr
        assert [each.split()[1] for each in result.stdout.splitlines() if "BatchSize" in each] == ["E9025"]
        return
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, NO_FINDINGS)
    assert f"VisibilityTimeout: {max(visibility, 61)} #" in after
    assert "MaximumBatchingWindowInSeconds: 1" in after


def test_fix_sets_the_visibility_timeout_for_the_slowest_function_of_a_queue() -> None:
    slow = FUNCTION.replace("Consumer:", "Slow:").replace("Timeout: 10", "Timeout: 100")
    write((QUEUES, slow + QUEUES))
    assert "VisibilityTimeout: 600 # seconds" in fixed(exits=0)


SEVERAL_LINES = "\n    Type: AWS::SQS::Queue # dead\n{}    DeletionPolicy: Retain"


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("{Type: AWS::SQS::Queue}", "{Type: AWS::SQS::Queue, Properties: {MessageRetentionPeriod: 1209600}}"),
        (
            SEVERAL_LINES.format(""),
            SEVERAL_LINES.format("    Properties:\n      MessageRetentionPeriod: 1209600\n"),
        ),
    ],
)
def test_fix_adds_properties_to_a_queue_without_any(queue: str, expected: str) -> None:
    before = "{Type: AWS::SQS::Queue, Properties: {MessageRetentionPeriod: 1209600}}"
    write((f"Dlq: {before}", f"Dlq: {queue}"))
    assert f"Dlq: {expected}\n" in fixed(exits=0)


def test_fix_keeps_the_ends_of_lines() -> None:
    write()
    Path("template.yaml").write_bytes(TEMPLATE.replace("\n", "\r\n").encode())
    check("--fix", "--force", exits=0)
    after = Path("template.yaml").read_bytes()
    assert (after.count(b"\r\n"), after.count(b"\n")) == (TEMPLATE.count("\n"), TEMPLATE.count("\n"))


@pytest.mark.parametrize("indent", [None, "\t"])
def test_fix_keeps_the_lines_of_json(indent: str | None) -> None:
    template = write_example("E9010", "wrong", Path("project"))
    if indent:
        template.write_text(json.dumps(json.loads(template.read_text()), indent=indent))
    before = template.read_text().splitlines()
    after = fixed(str(template), exits=0)
    [added] = [each for each in after.splitlines() if each not in before]
    assert added.strip() == '"FunctionResponseTypes": ["ReportBatchItemFailures"],'
    assert added.startswith(indent or " ")
    json.loads(after)


def test_the_number_of_findings_to_fix_does_not_count_those_that_are_left_to_you() -> None:
    condition = ("Resources:", "Conditions: {IsShort: !Equals [a, a]}\nResources:")
    write(("VisibilityTimeout: 20", "VisibilityTimeout: !If [IsShort, 20, 60]"), condition)
    assert check().stdout.endswith("1 error and 1 warning. To fix 1: tarry check --fix\n")
    Path("template.yaml").rename("other.yaml")
    assert check("other.yaml").stdout.endswith("To fix 1: tarry check other.yaml --fix\n")


# what is found, and where


def test_a_finding_names_the_logical_id_of_a_queue_whose_name_depends_on_the_deployment() -> None:
    write(
        ("VisibilityTimeout: 20", "QueueName: !Sub '${AWS::StackName}-orders'\n      VisibilityTimeout: 20"),
        ("{MessageRetentionPeriod: 1209600}", "{QueueName: !Ref Name}"),
        ("Resources:", "Parameters: {Name: {Type: String, Default: dead-dev}}\nResources:"),
    )
    found = {each["rule"]: each["text"] for each in json.loads(check("--format", "json").stdout)["findings"]}
    assert found["W9012"].startswith("Queue has a VisibilityTimeout of 20 s")
    assert found["W9016"].startswith("Dlq keeps messages for 4 days, not longer than Queue (4 days)")
    assert not [text for text in found.values() if "tarry-local" in text or "dead-dev" in text]


def test_a_finding_about_a_resource_of_a_loop_has_the_line_of_the_loop() -> None:
    loop = "  Fn::ForEach::Queues:\n    - Name\n    - [One, Two]\n    - Queue${Name}: {Type: AWS::SQS::Queue}\n"
    transforms = ("AWS::Serverless-2016-10-31", "[AWS::LanguageExtensions, AWS::Serverless-2016-10-31]")
    template = write(transforms, ("!GetAtt Queue.Arn", "!GetAtt QueueTwo.Arn"), more=loop)
    line = template.removesuffix(loop).count("\n") + 1
    assert f"template.yaml:{line}: W9014 QueueTwo has no dead-letter queue" in check().stdout


def test_a_module_that_inline_code_lacks_is_reported_at_its_function() -> None:
    inline = 'InlineCode: "import yaml\\ndef handler(event, context): ..."'
    layers = next(each for each in TEMPLATE.splitlines(keepends=True) if "Layers" in each)
    write(("CodeUri: src", inline), (layers, ""), ("app.handler", "index.handler"))
    assert (
        "template.yaml:3: W9001 Consumer imports yaml, which neither the Python of Lambda nor its Layers contain. "
        "Add a layer"
    ) in check().stdout


def test_the_decorator_of_powertools_that_lists_failures_needs_partial_responses() -> None:
    code = "from aws_lambda_powertools.utilities.batch import batch_processor\n@batch_processor(None, None)\n"
    write(code=f"{code}def handler(event, context): return processor.response()\n")
    assert "E9010 Lambda ignores which messages Consumer reports as failed" in check().stdout


def test_metadata_of_the_template_or_a_resource_ignores_a_rule() -> None:
    ignore = "Metadata: {cfn-lint: {config: {ignore_checks: [%s]}}}"
    write(("Resources:", f"{ignore % 'E9010'}\nResources:"))
    assert rules() == ["W9012"]
    queue = "  Queue:\n    Type: AWS::SQS::Queue\n"
    write((queue, f"{queue}    {ignore % 'W901'}\n"))
    assert rules() == ["E9010"]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (None, "there is no template here"),
        ("Resources: [", "template.yaml is not YAML"),
        ("", "template.yaml is empty"),
        ("Resources: {Queue: 1}", "is not a template"),
    ],
)
def test_without_a_template_that_can_be_read_the_exit_code_is_2(template: str | None, text: str) -> None:
    if template is not None:
        Path("template.yaml").write_text(template)
    result = check(exits=2)
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert text in result.stderr


BROKEN = """
  Broken: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: soon}}
  Named: {Type: AWS::SQS::Queue, Properties: {QueueName: !ImportValue name}}
  Odd: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: !Base64 x, RedrivePolicy: nothing}}
  Nowhere:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {EventSourceArn: !GetAtt Queue.Arn, FunctionName: [1]}
  Refused: {Type: AWS::Serverless::Function, Properties: {Events: {E: {Type: SQS, Properties: {}}}}}
"""


def test_what_cannot_be_read_is_named_and_the_others_are_checked() -> None:
    transforms = "[AWS::Serverless-2016-10-31, {Name: AWS::Include}, Company::Macro]"
    write(("AWS::Serverless-2016-10-31", transforms), more=BROKEN, code="raise SystemExit(3)\n")
    result = check(exits=1)
    assert result.stdout.count("W9012") == 1
    for part in ("Broken.VisibilityTimeout", "Named.QueueName", "Odd.RedrivePolicy", "Nowhere", "RefusedE"):
        assert part in result.stderr
    for name in ("Company::Macro", "AWS::Include"):
        assert f"The transform {name} is not known" in result.stderr


def test_functions_whose_code_is_not_here_are_named() -> None:
    write()
    Path("src/app.py").unlink()
    assert "Skipped: The handler app.handler of Consumer is not in src. The rules that need the" in check().stderr
    write(("CodeUri: src", "CodeUri: s3://bucket/code.zip"))
    result = check(exits=1)
    assert "Skipped: The code of Consumer is not on this machine. The rules that need the code" in result.stderr
    assert (result.stdout.count("W9012"), result.stdout.count("E9010")) == (1, 0)


def test_a_translated_template_and_one_of_the_cdk_have_the_same_findings() -> None:
    write()
    translated, _ = translate(load_document(Path("template.yaml")), "us-east-1", {})
    Path("translated.json").write_text(json.dumps(translated))
    assert "W9012 Queue has a VisibilityTimeout of 20 s" in check("translated.json").stdout
    Path("cdk.out/asset.1").mkdir(parents=True)
    Path("cdk.out/asset.1/app.py").write_text(HANDLER)
    function = translated["Resources"]["Consumer"]
    function["Properties"]["Code"] = {"S3Bucket": {"Fn::Sub": "cdk-${AWS::AccountId}"}, "S3Key": "1.zip"}
    function["Metadata"] = {"aws:cdk:path": "Shop/Consumer", "aws:asset:path": "asset.1"}
    translated["Parameters"] = {"BootstrapVersion": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/cdk"}}
    Path("cdk.out/Shop.template.json").write_text(json.dumps(translated, indent=1))
    assert sorted(rules("cdk.out", at="cdk.out/Shop.template.json")) == ["E9010", "W9012"]


def test_all_stacks_of_the_cdk_are_checked() -> None:
    Path("cdk.out").mkdir()
    template = write_example("W9012", "wrong", Path("project")).read_text()
    for name, text in {"One": template, "Two": template, "Bad": "{"}.items():
        Path(f"cdk.out/{name}.template.json").write_text(text)
    result = check("cdk.out", exits=1)
    assert [line.partition(":")[0] for line in result.stdout.splitlines() if "W9012" in line] == [
        "cdk.out/One.template.json",
        "cdk.out/Two.template.json",
    ]
    assert "Skipped: cdk.out/Bad.template.json is not JSON" in result.stderr
    assert "is generated, and the next build would undo" in check("cdk.out", "--fix", "--force", exits=2).stderr
