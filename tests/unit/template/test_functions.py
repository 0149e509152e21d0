"""The functions of a template."""

from pathlib import Path

import pytest

from tarry.tools.template import read_template
from tarry.tools.template.model import TemplateLayer
from tests.unit.template.example import TEMPLATE, read


def test_functions_have_global_and_own_settings(tmp_path: Path) -> None:
    template = read(tmp_path)
    worker, bookkeeper = template.functions["Worker"], template.functions["Bookkeeper"]
    assert (worker.code, worker.handler, worker.timeout_seconds) == (tmp_path / "worker", "app.handler", 20)
    assert worker.environment == {
        "STAGE": "dev",
        "TABLE": {"Ref": "Table"},
        "QUEUE": "dev-jobs",
        "URL": {"Ref": "Jobs"},
    }
    assert (bookkeeper.code, bookkeeper.timeout_seconds, bookkeeper.memory_mb) == (None, 5, 256)
    assert (worker.reserved_concurrency, bookkeeper.reserved_concurrency) == (None, 3)
    assert set(template.backing) == {"Table"}


@pytest.mark.parametrize(
    ("code", "folder"),
    [
        ("", "."),
        ("CodeUri: here", "here"),
        ("CodeUri: s3://bucket/key", None),
        ("CodeUri: {Bucket: b, Key: k}", None),
    ],
)
def test_the_code_path_is_that_of_sam(tmp_path: Path, code: str, folder: str | None) -> None:
    properties = ", ".join(filter(None, ["Handler: app.handler", "Runtime: python3.13", code]))
    text = f"Resources: {{F: {{Type: AWS::Serverless::Function, Properties: {{{properties}}}}}}}"
    assert read(tmp_path, text).functions["F"].code == (folder and tmp_path / folder)


def test_a_function_with_a_stream_as_source_is_read(tmp_path: Path) -> None:
    """SPEC N1. Resources that tarry cannot run do not matter."""
    template = read(
        tmp_path,
        TEMPLATE
        + """
  Projector:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: worker
      Handler: app.handler
      Events:
        Orders: {Type: DynamoDB, Properties: {Stream: !GetAtt Table.StreamArn, StartingPosition: LATEST}}
        Broker: {Type: MQ, Properties: {Broker: !GetAtt Mq.Arn, Queues: [x], SourceAccessConfigurations: [
          {Type: BASIC_AUTH, URI: !Ref Secret}]}}
  Mq: {Type: AWS::AmazonMQ::Broker, Properties: {}}
  Secret: {Type: AWS::SecretsManager::Secret, Properties: {}}
""",
    )

    assert template.functions["Projector"].handler == "app.handler"
    assert {mapping.function for mapping in template.mappings} == {m.function for m in read(tmp_path).mappings}


def test_layers_are_listed_with_global_ones_first(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("""
Transform: AWS::Serverless-2016-10-31
Globals:
  Function: {Runtime: python3.13, Handler: app.handler, Layers: [!Ref Shared]}
Resources:
  Shared:
    Type: AWS::Serverless::LayerVersion
    Properties: {ContentUri: layers/shared}
    Metadata: {BuildMethod: python3.13}
  Uploaded: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: s3://bucket/key}}
  Own: {Type: AWS::Serverless::LayerVersion, Properties: {ContentUri: layers/own}}
  Worker:
    Type: AWS::Serverless::Function
    Metadata: {BuildMethod: makefile}
    Properties: {Layers: ["arn:aws:lambda:us-east-1:1:layer:public:3", !Ref Own, !Ref Uploaded]}
""")
    worker = read_template(tmp_path / "template.yaml").functions["Worker"]
    assert worker.all_layers == (
        TemplateLayer(tmp_path / "layers/shared", build_method="python3.13"),
        TemplateLayer(arn="arn:aws:lambda:us-east-1:1:layer:public:3"),
        TemplateLayer(tmp_path / "layers/own"),
        TemplateLayer(),
    )
    assert worker.layers == (tmp_path / "layers/shared", tmp_path / "layers/own")
    assert (worker.runtime, worker.build_method) == ("python3.13", "makefile")


def test_numbers_and_booleans_in_the_environment_become_text(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text("""
Transform: AWS::Serverless-2016-10-31
Resources:
  Worker:
    Type: AWS::Serverless::Function
    Properties: {Runtime: python3.13, Handler: app.handler, Environment: {Variables: {DEBUG: true, COUNT: 3}}}
""")
    assert read_template(tmp_path / "template.yaml").functions["Worker"].environment == {"DEBUG": "true", "COUNT": "3"}
