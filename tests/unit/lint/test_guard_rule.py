"""W9035: what the outage guard of a template names, and what its role allows."""

from pathlib import Path

import pytest

from tarry.tools.check.checking import check_template

ROOT = Path(__file__).parents[3]
ON = {"OutageGuard": "true"}


def findings(folder: Path, *changes: tuple[str, str], parameters: dict[str, str] = ON) -> list[tuple[str, str]]:
    """Return the texts and snippets of the rule for the shipped template with these changes."""
    template = (ROOT / "template.yaml").read_text()
    for old, new in changes:
        assert old in template
        template = template.replace(old, new)
    (folder / "template.yaml").write_text(template)
    found = check_template(folder / "template.yaml", parameters).findings
    assert {each.functions for each in found if each.rule == "W9035"} <= {("GuardFunction",)}
    return [(each.text, each.snippet) for each in found if each.rule == "W9035"]


@pytest.mark.parametrize("parameters", [ON, {}, {**ON, "ProvisionedPollers": "3"}])
def test_the_guard_of_the_shipped_template_has_no_findings(parameters: dict[str, str], tmp_path: Path) -> None:
    assert findings(tmp_path, parameters=parameters) == []


def test_a_missing_namespace_is_found(tmp_path: Path) -> None:
    [(text, snippet)] = findings(tmp_path, ("POWERTOOLS_METRICS_NAMESPACE: !Ref AWS::StackName", "OTHER: x"))
    assert text.startswith("GuardFunction has no POWERTOOLS_METRICS_NAMESPACE: without metrics it does nothing.")
    assert snippet == "POWERTOOLS_METRICS_NAMESPACE: !Ref AWS::StackName"


def test_a_fifo_queue_a_queue_with_two_functions_and_provisioned_pollers_are_found(tmp_path: Path) -> None:
    fifo = ("${DigestFunctionScans}", "${LedgerFunctionEntries}")
    twice = ("            Queue: !GetAtt WebhooksQueue.Arn", "            Queue: !GetAtt OrdersQueue.Arn")
    texts = [text for text, _ in findings(tmp_path, fifo)]
    assert "cannot guard LedgerQueue: a failed message of a FIFO queue holds up its group anyway;" in texts[0]
    texts = [text for text, _ in findings(tmp_path, twice)]
    assert "cannot guard OrdersQueue: its queue has 2 consumers, and the others would get the messages;" in texts[0]
    asked = ('!Equals [!Ref ProvisionedPollers, "0"]]\n  HasPollers', '!Equals ["0", "0"]]\n  HasPollers')
    texts = [text for text, _ in findings(tmp_path, asked, parameters={**ON, "ProvisionedPollers": "3"})]
    assert [text.split("Queue: ")[1] for text in texts] == [
        "with provisioned pollers, it has no MaximumConcurrency for a probe; remove it from GUARDED."
    ] * 2


def test_permissions_that_the_guard_lacks_are_found_each_with_a_statement_that_allows_them(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        ("                  - lambda:TagResource\n", ""),
        ("event-source-mapping:${WebhooksFunctionWebhooks}", "event-source-mapping:other"),
        ("cloudwatch:GetMetricData, ", ""),
        ("Resource: [!GetAtt OrdersQueue.Arn, !GetAtt ScansQueue.Arn, ", "Resource: [!GetAtt OrdersQueue.Arn, "),
    )
    arn = "arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:event-source-mapping:"
    assert found[0] == (
        "GuardFunction lacks cloudwatch:GetMetricData. Add to its permissions:",
        '- {Effect: Allow, Action: cloudwatch:GetMetricData, Resource: "*"}',
    )
    assert found[1] == (
        "GuardFunction lacks lambda:TagResource on the mapping of OrdersQueue. Add to its permissions:",
        f'- {{Effect: Allow, Action: lambda:TagResource, Resource: !Sub "{arn}${{OrdersFunctionOrders}}"}}',
    )
    assert found[3] == (
        "GuardFunction lacks sqs:GetQueueUrl and sqs:GetQueueAttributes on ScansQueue. Add to its permissions:",
        "- {Effect: Allow, Action: [sqs:GetQueueUrl, sqs:GetQueueAttributes], Resource: !GetAtt ScansQueue.Arn}",
    )
    assert "lambda:UpdateEventSourceMapping" in found[4][0]
    assert len(found) == 5


def test_a_mapping_that_the_guard_may_change_and_does_not_name_is_found(tmp_path: Path) -> None:
    line = 'event-source-mapping:${OrdersFunctionOrders}"\n'
    more = line + line.join(['                  - !Sub "arn:aws:lambda:eu-west-1:123456789012:', ""]).replace(
        "OrdersFunctionOrders", "LedgerFunctionEntries"
    )
    [(text, _)] = findings(tmp_path, (line, more))
    assert text == (
        "GuardFunction may change the mapping of LedgerQueue, which it does not guard. Allow it on those in GUARDED."
    )
