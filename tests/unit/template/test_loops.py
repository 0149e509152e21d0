"""The loops and functions of AWS::LanguageExtensions."""

from pathlib import Path

import pytest

from tarry.tools.template import TemplateError, read_template

TEMPLATE = """
Transform: [AWS::LanguageExtensions, AWS::Serverless-2016-10-31]
Parameters:
  Names: {Type: CommaDelimitedList, Default: "orders,refunds"}
  Stage: {Type: String, Default: dev}
Mappings:
  Sizes: {dev: {Batch: 3}}
  Regions: {eu: {Names: [north-1, south-1]}}
Conditions:
  Fn::ForEach::Flags: [Name, !Ref Names, {"Has${Name}": !Equals ["${Name}", orders]}]
Resources:
  Fn::ForEach::Queues:
    - Name
    - !Ref Names
    - "${Name}Queue":
        Type: AWS::SQS::Queue
        Properties:
          QueueName: !Sub "${Stage}-${Name}"
          RedrivePolicy: {deadLetterTargetArn: !GetAtt "${Name}Dead.Arn", maxReceiveCount: !Length [a, b, c, d]}
      "${Name}Dead": {Type: AWS::SQS::Queue, Properties: {QueueName: !Join ["-", [!Ref Name, dead]]}}
      "${Name}Worker":
        Type: AWS::Serverless::Function
        Properties:
          Handler: app.handler
          Runtime: python3.13
          CodeUri: "src/${Name}"
          Environment:
            Variables:
              Fn::ForEach::Variables: [Key, [A, B], {"${Key}_KEY": !Sub "${Key} of ${Name}"}]
              SETTINGS: !ToJsonString {name: !Ref Name, url: !Ref "${Name}Queue"}
          Events:
            Jobs:
              Type: SQS
              Properties:
                Queue: !GetAtt "${Name}Queue.Arn"
                BatchSize: !FindInMap [Sizes, !Ref Stage, Batch]
                MaximumBatchingWindowInSeconds: !FindInMap [Sizes, !Ref Stage, Window, {DefaultValue: 7}]
  Fn::ForEach::Continents:
    - Continent
    - [eu]
    - Fn::ForEach::Regions:
        - Region
        - !FindInMap [Regions, !Ref Continent, Names]
        - "Q&{Continent}&{Region}": {Type: AWS::SQS::Queue, Properties: {QueueName: "${Continent}-${Region}"}}
  Plain: {Type: AWS::SQS::Queue, Condition: Hasrefunds}
"""


def test_loops_make_resources_properties_and_conditions(tmp_path: Path) -> None:
    (tmp_path / "template.yaml").write_text(TEMPLATE)
    template = read_template(tmp_path / "template.yaml")
    assert template.not_played == template.left_out == ()
    assert set(template.queues) == {
        *("dev-orders", "dev-refunds", "orders-dead", "refunds-dead"),
        *("eu-north-1", "eu-south-1"),
    }
    assert template.queues["eu-north-1"].logical_id == "Qeunorth1"
    queue, worker = template.queues["dev-refunds"], template.functions["refundsWorker"]
    assert (queue.dead_letter_arn or "").endswith(":refunds-dead")
    assert queue.max_receive_count == 4
    assert worker.code == tmp_path / "src/refunds"
    assert worker.environment == {
        "A_KEY": "A of refunds",
        "B_KEY": "B of refunds",
        "SETTINGS": {"Fn::ToJsonString": {"name": "refunds", "url": {"Ref": "refundsQueue"}}},
    }
    assert {(each.queue, each.function, each.batch_size, each.window_seconds) for each in template.mappings} == {
        ("dev-orders", "ordersWorker", 3, 7),
        ("dev-refunds", "refundsWorker", 3, 7),
    }
    given = read_template(tmp_path / "template.yaml", {"Names": "mails, refunds"})
    assert {each.queue for each in given.mappings} == {"dev-mails", "dev-refunds"}


QUEUE = "{Type: AWS::SQS::Queue}"


@pytest.mark.parametrize(
    ("loop", "problem"),
    [
        (
            "[N, [a], text]",
            "Fn::ForEach::Loop must be a list of an identifier, a collection and a map, got ['N'",
        ),
        ("[N, a, {'Q${N}': QUEUE}]", "Resources.Fn::ForEach::Loop: its collection must be a list of texts, got 'a'"),
        ("[N, !Ref X, {'Q${N}': QUEUE}]", "Resources.Fn::ForEach::Loop, its collection: Ref X cannot be resolved"),
        ("[N, [a, b], {Q: QUEUE}]", "Resources.Fn::ForEach::Loop makes Q twice: its keys must contain its identifier"),
        ("[N, [a], {'Q${N}': {}}]", "Resources.Qa, made by a Fn::ForEach, must be a resource with a Type"),
    ],
)
def test_a_wrong_loop_is_refused_by_its_name(tmp_path: Path, loop: str, problem: str) -> None:
    resources = f"Resources: {{Fn::ForEach::Loop: {loop}}}".replace("QUEUE", QUEUE)
    (tmp_path / "template.yaml").write_text(f"Transform: AWS::LanguageExtensions\n{resources}")
    with pytest.raises(TemplateError) as refusal:
        read_template(tmp_path / "template.yaml")
    assert problem in str(refusal.value)
    (tmp_path / "template.yaml").write_text(resources)
    with pytest.raises(TemplateError, match="Fn::ForEach::Loop needs the transform AWS::LanguageExtensions: add it"):
        read_template(tmp_path / "template.yaml")
