"""Templates that are read whole, or refused."""

from pathlib import Path

import pytest

from tarry.tools.template import TemplateError, read_template
from tests.unit.template.example import read

REPOSITORY = Path(__file__).parents[3]


def test_in_the_shipped_template_each_function_has_a_queue() -> None:
    template = read_template(REPOSITORY / "template.yaml")
    fed = {mapping.queue: template.functions[mapping.function] for mapping in template.mappings}
    assert set(fed) == {"orders", "ledger.fifo", "scans", "webhooks"}
    assert all(function.code and function.code.is_dir() for function in fed.values())
    assert all(mapping.reports_failures for mapping in template.mappings)
    assert template.queues["orders"].dead_letter_arn == template.queues["orders-dlq"].arn


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Resources: [", "template.yaml is not YAML: line 1, column 13: expected the node content"),
        (
            "Resources:\n\tQ: {}",
            "line 2, column 1: found character '\\t' that cannot start any token; indent with spaces",
        ),
        ("Resources:\n  Q: %%TYPE%%", "line 2: %%TYPE%% is a placeholder of another tool: run that tool first"),
        ("Resources:\n  {{ name }}: {Type: AWS::SQS::Queue}", "line 2: {{ name }} is a placeholder of another tool"),
        (
            "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: '%%X%%-q'}}}",
            "'%%X%%-q' is not a queue name",
        ),
        (
            "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${D.QueueName}-q'}}, "
            "D: {Type: AWS::SQS::Queue, Properties: {QueueName: !Sub '${Q.QueueName}-d'}}}",
            "Q.QueueName, D.QueueName refer to each other: give one of them a plain name",
        ),
        (
            "Resources: {"
            "Q: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt D.Arn}}}, "
            "D: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: {deadLetterTargetArn: !GetAtt Q.Arn}}}, "
            + ", ".join(
                f"M{each}: {{Type: AWS::Lambda::EventSourceMapping, "
                f"Properties: {{FunctionName: f, EventSourceArn: !GetAtt {each}.Arn}}}}"
                for each in "QD"
            )
            + "}",
            "the cycle of dead-letter queues Q -> D -> Q: remove one RedrivePolicy",
        ),
        ("just text", "is not a template"),
        (
            "\n".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 1}]" for n in range(9))
            + "\nResources: *a8",
            "template.yaml has more than 500,000 values once its YAML aliases are expanded",
        ),
        ("Resources: &a {Q: *a}", "or an alias that contains itself"),
        ("Resources: {Q: {Properties: {}}}", "is not a template"),
        ("Resources: {Q: {Type: [AWS::SQS::Queue]}}", "the Type of Q must be a text"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: [x]}}", "the Properties of Q must be a map"),
        ("Parameters: {Stage: dev}\nResources: {Q: {Type: X}}", "Parameters.Stage must be a map with a Type"),
        ("Conditions: dev\nResources: {Q: {Type: X}}", "Conditions must be a map"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Condition: [x]}}", "Q: the template has no condition ['x']"),
        (
            "Resources: {Q: {Type: AWS::SQS::Queue, Properties: {RedrivePolicy: x}}}",
            "Q.RedrivePolicy must be a map, got 'x'",
        ),
        (
            "Resources: {M: {Type: AWS::Lambda::EventSourceMapping, "
            "Properties: {FunctionName: [x], EventSourceArn: 'arn:aws:sqs:us-east-1:1:q'}}}",
            "M.FunctionName must be a name or an ARN, got ['x']",
        ),
        ("Resources: {F: {Type: AWS::Serverless::Function, Properties: {CodeUri: f}}}", "SAM refuses the template"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {QueueName: !Ref Name}}}", "Q.QueueName: Ref Name"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: soon}}}", "Q.VisibilityTimeout must"),
        ("Resources: {Q: {Type: AWS::SQS::Queue, Properties: }}", "the Properties of Q must be a map"),
        (
            "Resources: {M: {Type: AWS::Lambda::EventSourceMapping, "
            "Properties: {FunctionName: f, EventSourceArn: 'arn:aws:sqs:us-east-1:1:q', FilterCriteria: [x]}}}",
            "is not a valid template (AttributeError: 'list' object has no attribute 'get'): sam validate --lint names",
        ),
    ],
)
def test_an_invalid_template_is_refused_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        read(tmp_path, text)
    assert expected in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_template_and_an_unknown_parameter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"nowhere\.yaml does not exist$"):
        read_template(tmp_path / "nowhere.yaml")
    with pytest.raises(TemplateError, match="no parameter Colour; it has Stage"):
        read(tmp_path, Colour="red")
