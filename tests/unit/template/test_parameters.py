"""The values of parameters: given, from samconfig.toml, defaults, and placeholders."""

from pathlib import Path

import pytest

from tarry.tools.template import Template, TemplateError, read_template
from tarry.tools.template.model import TemplateAsync

TEMPLATE = """
Parameters:
  Stage: {Type: String, AllowedValues: [dev, prod]}
  Team: {Type: String}
  Timeout: {Type: Number, MinValue: 60}
  Retries: {Type: Number}
  SubnetIds: {Type: List<AWS::EC2::Subnet::Id>}
  SharedQueueArn: {Type: String}
  Size: {Type: Number, Default: 5}
Resources:
  Jobs:
    Type: AWS::SQS::Queue
    Properties: {QueueName: !Sub "${Stage}-${Team}-jobs", VisibilityTimeout: !Ref Timeout}
  Worker:
    Type: AWS::Lambda::Function
    Properties:
      Handler: app.handler
      Runtime: python3.13
      Code: src
      VpcConfig: {SubnetIds: !Ref SubnetIds}
      Environment: {Variables: {TIMEOUT: !Ref Timeout}}
  Mapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties: {FunctionName: !Ref Worker, EventSourceArn: !Ref SharedQueueArn, BatchSize: !Ref Size}
"""


def read(folder: Path, configured: dict[str, str] | None = None, *, lenient: bool = True, **given: str) -> Template:
    (folder / "template.yaml").write_text(TEMPLATE)
    return read_template(folder / "template.yaml", given, configured=configured, lenient=lenient)


def test_a_parameter_that_is_needed_gets_its_first_allowed_value_its_minimum_or_its_name(tmp_path: Path) -> None:
    template = read(tmp_path)
    placeholders = {"Stage": "dev", "Team": "Team", "Timeout": "60", "SharedQueueArn": "SharedQueueArn"}
    assert template.placeholders == placeholders
    assert template.missing == ("Stage", "Team", "Timeout", "Retries", "SubnetIds", "SharedQueueArn")
    assert template.functions["Worker"].environment == {"TIMEOUT": "60"}
    assert "dev-Team-jobs" in template.queues
    (mapping,) = template.mappings
    assert (mapping.queue, mapping.function, mapping.batch_size) == ("SharedQueueArn", "Worker", 5)


MADE_UP = """
Parameters:
  Seconds: {Type: Number}
  Count: {Type: Number, MinValue: 5}
  DeadLettersArn: {Type: String}
  Level: {Type: String, AllowedValues: [WARN, INFO]}
  Stage: {Type: String}
  Pattern: {Type: String}
  Bucket: {Type: String}
  Unused: {Type: String}
Conditions: {IsProd: !Equals [!Ref Stage, prod]}
Resources:
  Jobs:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: !Sub "jobs-${Stage}"
      VisibilityTimeout: !Ref Seconds
      DelaySeconds: !If [IsProd, 9, 3]
      RedrivePolicy: {deadLetterTargetArn: !Ref DeadLettersArn, maxReceiveCount: !Ref Count}
  Worker:
    Type: AWS::Lambda::Function
    Properties:
      Handler: app.handler
      Code: {S3Bucket: !Ref Bucket, S3Key: code.zip}
      Timeout: 45
      MemorySize: !Ref Count
      LoggingConfig: {LogFormat: JSON, ApplicationLogLevel: !Ref Level}
      DeadLetterConfig: {TargetArn: !Ref DeadLettersArn}
      Role: !GetAtt Role.Arn
  Role: {Type: AWS::IAM::Role, Properties: {Policies: [{PolicyDocument: {Statement: [{Resource: !Ref Unused}]}}]}}
  Mapping:
    Type: AWS::Lambda::EventSourceMapping
    Properties:
      FunctionName: !Ref Worker
      EventSourceArn: !GetAtt Jobs.Arn
      BatchSize: !Ref Count
      ScalingConfig: {MaximumConcurrency: !If [IsProd, 50, !Ref Count]}
      FilterCriteria: {Filters: [{Pattern: !Ref Pattern}, {Pattern: "{}"}]}
  Settings:
    Type: AWS::Lambda::EventInvokeConfig
    Properties: {FunctionName: !Ref Worker, MaximumRetryAttempts: !Ref Count}
"""


def test_a_property_that_needs_a_made_up_value_has_the_default_of_aws(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(MADE_UP)
    template = read_template(tmp_path / "template.yaml", lenient=True)
    [queue], [worker], [mapping] = template.queues.values(), template.functions.values(), template.mappings
    # Lambda accepts the mapping, so the visibility timeout is at least the timeout of the function
    assert (queue.name, queue.attributes) == ("jobs-Stage", {"DelaySeconds": "3", "VisibilityTimeout": "45"})
    assert queue.dead_letter_arn == "arn:aws:sqs:us-east-1:123456789012:DeadLettersArn"
    assert queue.max_receive_count == 10
    assert (worker.memory_mb, worker.log_level, worker.asynchronous) == (128, "WARN", TemplateAsync())
    assert (mapping.batch_size, mapping.maximum_concurrency, mapping.filters) == (10, None, ())
    assert set(template.placeholders) == {"DeadLettersArn", "Level", "Stage"}
    assert set(template.defaulted.items()) == {
        ("Jobs.VisibilityTimeout", "Seconds"),
        ("Jobs.RedrivePolicy.maxReceiveCount", "Count"),
        ("Worker.MemorySize", "Count"),
        ("Worker.DeadLetterConfig.TargetArn", "DeadLettersArn"),
        ("Mapping.BatchSize", "Count"),
        ("Mapping.ScalingConfig.MaximumConcurrency", "Count"),
        ("Mapping.FilterCriteria.Filters.0.Pattern", "Pattern"),
        ("Settings.MaximumRetryAttempts", "Count"),
    }


def test_without_placeholders_all_missing_parameters_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(TemplateError) as refusal:
        read(tmp_path, lenient=False, Stage="dev", Timeout="60")
    assert str(refusal.value) == (
        "parameters without a value: Team, Retries, SubnetIds, SharedQueueArn. Add --parameter Team=VALUE "
        "--parameter Retries=VALUE --parameter SubnetIds=VALUE --parameter SharedQueueArn=VALUE"
    )


def test_given_values_precede_those_of_samconfig_which_precede_defaults(tmp_path: Path) -> None:
    template = read(tmp_path, {"Team": "a", "Size": "9", "Stage": "prod", "Unknown": "1"}, Team="b")
    assert "prod-b-jobs" in template.queues
    assert template.mappings[0].batch_size == 9
    assert template.missing == ("Timeout", "Retries", "SubnetIds", "SharedQueueArn")


CONSTRAINED = """
Parameters:
  Stage: {Type: String, AllowedValues: [dev, prod]}
  Traced: {Type: String, AllowedValues: [true, false]}
  Days: {Type: Number, AllowedValues: [1, 30]}
  Pollers: {Type: Number, MinValue: 2, MaxValue: 200}
  Team: {Type: String, MinLength: 2, MaxLength: "4"}
  Zones: {Type: CommaDelimitedList, AllowedPattern: "[a-z]+"}
  Topic: {Type: String, AllowedPattern: ^arn:.*$, ConstraintDescription: must be an ARN}
  Token: {Type: String, MinLength: 8, NoEcho: true}
  Java: {Type: String, AllowedPattern: "\\\\p{Alpha}+"}
  Short: {Type: String, Default: x, MinLength: 3}
Resources: {}
"""


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ("Stage=test", "parameter Stage cannot be 'test': must be one of dev, prod"),
        ("Traced=yes", "parameter Traced cannot be 'yes': must be one of true, false"),
        ("Days=2", "parameter Days cannot be '2': must be one of 1, 30"),
        ("Pollers=many", "parameter Pollers cannot be 'many': must be a number"),
        ("Pollers=1", "parameter Pollers cannot be '1': must be at least 2"),
        ("Pollers=201", "parameter Pollers cannot be '201': must be at most 200"),
        ("Team=a", "parameter Team cannot be 'a': must have at least 2 characters"),
        ("Team=abcde", "parameter Team cannot be 'abcde': must have at most 4 characters"),
        ("Zones=a,B", "parameter Zones cannot be 'a,B': must match [a-z]+"),
        ("Topic=alarms", "parameter Topic cannot be 'alarms': must be an ARN"),
        ("Token=secret", "parameter Token cannot be the given value (NoEcho): must have at least 8 characters"),
        ("Stage=dev Traced=true Days=30.0 Pollers=2 Team=abcd Zones=a,b Topic=arn:a Token=12345678 Java=a", ""),
        ("", ""),  # neither placeholders nor defaults are checked
    ],
)
def test_values_that_cloudformation_refuses_are_refused_with_what_is_allowed(
    tmp_path: Path, given: str, refusal: str
) -> None:
    (tmp_path / "template.yaml").write_text(CONSTRAINED)
    values = dict(each.split("=") for each in given.split())

    def refused(**arguments: dict[str, str]) -> str:
        try:
            read_template(tmp_path / "template.yaml", lenient=True, **arguments)  # type: ignore[arg-type]
        except TemplateError as error:
            return str(error)
        return ""

    assert refused(parameters=values, configured={}) == refusal
    assert refused(configured=values) == refusal.replace(" cannot", " of the samconfig file cannot")
    if refusal:  # a given value has precedence
        assert refused(parameters={"Stage": "dev"}, configured={"Stage": "test"}) == ""
