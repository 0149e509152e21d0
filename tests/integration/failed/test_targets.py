"""The queues, account, region and stack that `tarry failed` works on."""

import os
from pathlib import Path

import boto3
import pytest
from typer.testing import CliRunner, Result

from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess, in_project
from tarry.tools.cli.options import TargetOptions
from tarry.tools.local.instances import announced
from tests.integration.failed.motoshop import MotoShop

NAMED_AFTER_THE_STACK = """
Resources:
  Dead: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub "${AWS::StackName}-dlq"}}
  Orders: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn}}}
"""
PLAIN = """
Resources:
  Dead: {Type: AWS::SQS::Queue}
  Jobs:
    Type: AWS::SQS::Queue
    Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Dead.Arn, maxReceiveCount: 3}}
"""
HERE = "http://127.0.0.1:4576"


def show(*arguments: str, queue: str = "orders-dlq") -> Result:
    """Run the command as a user types it, without the options of the shop."""
    result = CliRunner().invoke(app, ["failed", "show", "--queue", queue, *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    return result


def test_a_template_selects_its_dead_letter_queues(shop: MotoShop) -> None:  # SPEC M1
    shop.template()
    shop.put(1)
    assert shop.run("show", queue=None).stdout.startswith("orders-dlq\n")
    assert shop.run("show", "--template", "template.yaml", queue="Dead").stdout.startswith("orders-dlq\n")
    error = "tarry: queue 'nope' does not exist; existing queues: orders-dlq\n"
    assert shop.refused("show", "--template", "template.yaml", queue="nope") == error


@pytest.mark.parametrize("queue", [None, "Dead"])
def test_the_stack_must_be_named_if_the_queues_of_the_template_are_named_after_it(
    shop: MotoShop, queue: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine, samconfig.toml can give them plain names; on AWS these would be those of another stack."""
    (shop.folder / "template.yaml").write_text(NAMED_AFTER_THE_STACK)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"):
        monkeypatch.delenv(name, raising=False)
    assert shop.refused("show", queue=queue) == (
        "tarry: template.yaml names its queues after the stack: name the stack that you mean (--stack NAME)\n"
    )


def test_a_stack_selects_its_dead_letter_queues(shop: MotoShop) -> None:  # SPEC M1
    boto3.client("cloudformation", region_name="us-east-1").create_stack(StackName="shop", TemplateBody=PLAIN)
    result = shop.run("show", "--stack", "shop", queue=None)
    assert (result.exit_code, "Dead" in result.stderr) == (0, True)
    assert shop.run("show", "--stack", "shop", queue="Dead").exit_code == 0
    (shop.folder / "template.yml").write_text("Resources: {Dead: {Type: AWS::SQS::Queue}}")
    config = '[default.global.parameters]\nstack_name = "shop"\nregion = "eu-west-1"'
    (shop.folder / "samconfig.toml").write_text(config)
    found = shop.run("show", queue=None)  # with AWS_DEFAULT_REGION, which precedes
    assert found.stderr.startswith("AWS 123456789012 us-east-1, stack shop (of the samconfig file)\n")
    assert found.stdout == result.stdout
    shop.refused("show", "--stack", "nope", queue=None)


def test_the_error_for_an_unknown_queue_lists_existing_queues_and_for_none_the_options(
    shop: MotoShop,
) -> None:  # SPEC M1
    """At AWS, the first also names the tarry local that runs the template."""
    unknown = "tarry: queue 'nope' does not exist; existing queues: orders-dlq, orders"
    assert shop.refused("show", queue="nope") == f"AWS us-east-1\n{unknown}\n"
    assert shop.refused("show", queue=None) == (
        "tarry: there is no template here (template.yaml, template.yml, template.json, .aws-sam/build/template.yaml"
        ", cdk.out/*.template.json): name one with --template FILE; or name a deployed stack (--stack NAME) or a "
        "queue (--queue NAME)\n"
    )
    shop.template()
    with announced("http://127.0.0.1:5001", shop.folder / "template.yaml"):
        error = shop.refused("show", queue="nope")
    assert error.endswith("; for the queues of the tarry local that runs here: --local\n")


def without_settings(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Leave the command no credentials and no region."""
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(folder / "none"))


def test_missing_credentials_and_region_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_settings(monkeypatch, tmp_path)
    error = show().stderr
    assert "set AWS_REGION" in error
    assert "for the queues of tarry local: --local" in error
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert show().stderr.startswith("tarry: no usable AWS credentials")


def test_an_endpoint_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tarry.tools.cli.failed.targets.TRIES", 1)
    error = show("--endpoint-url", "http://127.0.0.1:9", queue="dlq").stderr
    assert error.startswith("tarry: no SQS answers at http://127.0.0.1:9/ (Could not connect")


def test_the_stack_and_region_are_those_of_the_project_where_no_others_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC M1
    """The region is that of the option, then of AWS_REGION."""
    without_settings(monkeypatch, tmp_path)
    assert in_project(TargetOptions()) == TargetOptions()
    (tmp_path / ".aws-sam/build").mkdir(parents=True)
    (tmp_path / ".aws-sam/build/template.yaml").touch()
    (tmp_path / "samconfig.yaml").write_text("default: {deploy: {parameters: {stack_name: shop, region: eu-west-1}}}")
    assert in_project(TargetOptions()) == TargetOptions(stack="shop", region="eu-west-1")
    for named in (
        TargetOptions(queue="dlq"),
        TargetOptions(stack="other"),
        TargetOptions(template=tmp_path / "template.yaml"),
        TargetOptions(endpoint_url=HERE),
    ):
        assert in_project(named) == named
    assert AwsAccess(TargetOptions(queue="dlq")).region == "eu-west-1"
    assert AwsAccess(TargetOptions(endpoint_url=HERE)).region == "us-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert in_project(TargetOptions()) == TargetOptions(stack="shop", region="eu-north-1")
    assert AwsAccess(TargetOptions()).client("sqs").meta.region_name == "eu-north-1"
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert AwsAccess(TargetOptions()).client("sqs").meta.region_name == "eu-central-1"
    assert AwsAccess(TargetOptions(region="eu-west-2")).client("sqs").meta.region_name == "eu-west-2"
    monkeypatch.setenv("AWS_ENDPOINT_URL", HERE)
    assert in_project(TargetOptions()) == TargetOptions()
