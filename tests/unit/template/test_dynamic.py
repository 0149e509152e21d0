"""Dynamic references: {{resolve:...}} in a template."""

from pathlib import Path

import pytest

from tarry.tools.template import Template, TemplateError, read_template

TEMPLATE = """
Parameters: {Stage: {Type: String, Default: dev}}
Resources:
  Jobs:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: "{{resolve:ssm:/dev/timeout:3}}"
      DelaySeconds: "{{resolve:ssm:/dev/unknown}}"
  Table: {Type: AWS::DynamoDB::Table}
  Timeout: {Type: AWS::SSM::Parameter, Properties: {Name: !Sub "/${Stage}/timeout", Type: String, Value: "77"}}
  TableName: {Type: AWS::SSM::Parameter, Properties: {Name: table, Type: String, Value: !Ref Table}}
  Loop: {Type: AWS::SSM::Parameter, Properties: {Name: loop, Type: String, Value: "{{resolve:ssm:loop}}"}}
  Plain: {Type: AWS::SecretsManager::Secret, Properties: {Name: plain, SecretString: '{"user": "ann", "port": 5}'}}
  Made:
    Type: AWS::SecretsManager::Secret
    Properties: {GenerateSecretString: {SecretStringTemplate: '{"user": "bob"}', GenerateStringKey: password}}
  Worker:
    Type: AWS::Lambda::Function
    Properties:
      Handler: app.handler
      Environment:
        Variables:
          TIMEOUT: !Sub "{{resolve:ssm:/${Stage}/timeout}} s"
          TABLE: "{{resolve:ssm:table}}"
          WHERE: !Join ["/", ["x", "{{resolve:ssm:table}}", "{{resolve:ssm-secure:seeded:1}}"]]
          USER: "{{resolve:secretsmanager:plain:SecretString:user}}"
          PORT: "{{resolve:secretsmanager:arn:aws:secretsmanager:us-east-1:123456789012:secret:plain-AbCd12::port}}"
          MADE: !Sub "{{resolve:secretsmanager:${Made}:SecretString:user}}@${Jobs}"
          SEEDED: "{{resolve:secretsmanager:seeded}}"
          GONE: "{{resolve:ssm:/gone}}"
          NO_KEY: !Sub "{{resolve:secretsmanager:${Made}::host}}"
          LOOP: "{{resolve:ssm:loop}}"
"""
STORED = {("ssm", "seeded"): "one", ("secretsmanager", "seeded"): "two"}


def read(folder: Path, *, lenient: bool) -> Template:
    (folder / "template.yaml").write_text(TEMPLATE)
    return read_template(folder / "template.yaml", stored=STORED, lenient=lenient)


def test_dynamic_references_have_the_values_of_the_template_or_of_the_seed(tmp_path: Path) -> None:
    template = read(tmp_path, lenient=True)
    assert template.queues["Jobs"].attributes == {"VisibilityTimeout": "77"}
    worker = template.functions["Worker"]
    assert worker.environment == {
        "TIMEOUT": "77 s",
        "TABLE": {"Ref": "Table"},
        "WHERE": {"Fn::Join": ["/", ["x", {"Ref": "Table"}, "one"]]},
        "USER": "ann",
        "PORT": "5",
        "MADE": {"Fn::Join": ["", ["bob", "@", {"Ref": "Jobs"}]]},
        "SEEDED": "two",
    }


def test_a_dynamic_reference_without_a_value_is_named(tmp_path: Path) -> None:
    template = read(tmp_path, lenient=True)
    assert template.functions["Worker"].unresolved == {
        name: f"{'Loop.Value' if name == 'LOOP' else f'Worker.Environment.Variables.{name}'}: {why}"
        for name, why in {
            "GONE": "{{resolve:ssm:/gone}} cannot be resolved: neither the template nor --seed has the SSM parameter",
            "NO_KEY": "{{resolve:secretsmanager:${Made}::host}} cannot be resolved: the secret has no key host",
            "LOOP": "{{resolve:ssm:loop}} refers to itself",
        }.items()
    }
    assert template.left_out[0].startswith("Jobs.DelaySeconds: {{resolve:ssm:/dev/unknown}} cannot be resolved: ")
    with pytest.raises(TemplateError, match=r"Jobs\.DelaySeconds: \{\{resolve:ssm:/dev/unknown\}\} cannot be resolved"):
        read(tmp_path, lenient=False)
