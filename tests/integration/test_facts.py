"""The facts of docs/platform.md: the simulator conforms to them, and the table of results shows how moto behaves."""

import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from samtranslator.yaml_helper import yaml_parse

import tests.facts.probes  # noqa: F401 registers the probes
from tarry.failed.dead_letters import event_record
from tests.facts import __main__ as script
from tests.facts.function import app
from tests.facts.platforms.aws import AwsPlatform, Stack
from tests.facts.platforms.moto import START, clock_of_moto
from tests.facts.platforms.platform import TIMEOUT_SECONDS, Platform
from tests.facts.platforms.simulator import SimulatedPlatform, simulated_platform
from tests.facts.registry import (
    MOTO,
    NOT_PROBED,
    PROBES,
    SIMULATOR,
    NotProbed,
    Probe,
    ProbeResult,
    Target,
    aws,
    run_probe,
)
from tests.facts.table import BEGIN, END, read_table, with_table
from tests.pages import ROOT
from tests.records import Context

TODAY = date(2026, 1, 2)
RESULTS = script.PAGE.read_text("utf-8")
TABLE = read_table(RESULTS)
PAGE = (ROOT / "docs" / "platform.md").read_text("utf-8")
TEMPLATE = Path(script.__file__).with_name("template.yaml")


def for_each_fact(probes: list[Probe]) -> Any:
    """Run a test for each fact, with the probes of its claims."""
    facts = {each.fact: [other for other in probes if other.fact == each.fact] for each in probes}
    return pytest.mark.parametrize("probes", facts.values(), ids=facts)


def probes_for(target: Target) -> list[Probe]:
    return [probe for probe in PROBES if probe.needs <= target.has]


def of_fact(fact: str) -> list[Probe]:
    return [probe for probe in PROBES if probe.fact == fact]


# the facts


@for_each_fact(probes_for(SIMULATOR))
def test_the_simulator_behaves_like_aws(probes: list[Probe]) -> None:
    results = {probe.claim: run_probe(probe, SIMULATOR, TODAY) for probe in probes}
    assert results == dict.fromkeys(results, ProbeResult("holds", on=TODAY))


@for_each_fact(probes_for(MOTO))
def test_moto_behaves_as_the_page_shows(probes: list[Probe]) -> None:
    for probe in probes:
        result, recorded = run_probe(probe, MOTO, TODAY), TABLE[probe.fact, probe.claim]["moto"]
        assert (result.kind, result.detail) == (recorded.kind, recorded.detail), f"{probe.claim}: run make aws-facts"


def test_the_table_is_the_output_of_the_script_and_shows_every_claim_once() -> None:
    """With the behavior of the simulator; the page marks the facts in which moto differs."""
    assert with_table(RESULTS, {}, PROBES, NOT_PROBED) == RESULTS, "run make aws-facts"
    expected = {(each.fact, each.claim): "holds" if each in probes_for(SIMULATOR) else "absent" for each in PROBES}
    assert {key: recorded["simulator"].kind for key, recorded in TABLE.items()} == expected, "run make aws-facts"
    assert len(expected) == len(PROBES), "a claim is made twice"
    paragraphs = [paragraph for paragraph in PAGE.split("\n\n") if paragraph.startswith("**")]
    marked = {paragraph[2:].partition(".**")[0] for paragraph in paragraphs if "△" in paragraph}
    assert {fact for (fact, _), recorded in TABLE.items() if recorded["moto"].kind == "differs"} <= marked


def test_every_fact_of_the_page_has_a_probe_or_a_reason_for_the_lack_of_one() -> None:
    numbered = [line[2:].partition(".**")[0] for line in PAGE.splitlines() if line.startswith("**") and ".**" in line]
    assert (numbered[0], numbered[-1]) == ("1", "38b")
    assert set(numbered) == {each.fact for each in [*PROBES, *NOT_PROBED]}


class CarelessPlatform(SimulatedPlatform):
    """A platform whose mappings ignore batch item failures and filter criteria."""

    def connect(self, url: str, *, throttled: bool = False, **settings: Any) -> None:
        settings.pop("FunctionResponseTypes", None)
        settings.pop("FilterCriteria", None)
        super().connect(url, throttled=throttled, **settings)


def test_the_probes_find_a_faulty_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.facts.platforms.simulator.SimulatedPlatform", CarelessPlatform)
    careless = Target("careless", SimulatedPlatform.has, simulated_platform)
    seen = {fact: {run_probe(probe, careless, TODAY).kind for probe in of_fact(fact)} for fact in ("10", "12", "15c")}
    assert seen == {"10": {"holds", "differs"}, "12": {"differs"}, "15c": {"differs"}}


# the table


def claim(fact: str = "1", text: str = "a claim") -> Probe:
    return Probe(fact, text, lambda platform: None, "seconds", frozenset())


EMPTY_PAGE = f"before\n{BEGIN}\n{END}\nafter\n"
HOLDS = ProbeResult("holds", on=TODAY)
DIFFERS = ProbeResult("differs", "accepted: 1, 2 | <3>", TODAY)


def test_a_table_that_was_written_can_be_read_and_a_probe_that_was_not_run_keeps_its_earlier_result() -> None:
    key = "1", "a claim"
    results = {key: {"AWS": HOLDS, "simulator": ProbeResult("absent"), "moto": DIFFERS}}
    page = with_table(EMPTY_PAGE, results, [claim()], [])
    assert "| 1 | a claim | holds, 2026-01-02 | - | differs: accepted: 1, 2 / &lt;3>, 2026-01-02 |" in page
    recorded = read_table(page)[key]
    differs = ProbeResult("differs", recorded["moto"].detail, TODAY)
    assert recorded == {"AWS": HOLDS, "simulator": ProbeResult("absent"), "moto": differs}
    assert with_table(page, {}, [claim()], []) == page
    later = with_table(page, {key: {"AWS": ProbeResult("not run", "AccessDenied"), "moto": HOLDS}}, [claim()], [])
    assert read_table(later)[key] == {**recorded, "moto": HOLDS}
    changed = with_table(later, {}, [claim(text="another")], [])
    not_run = dict.fromkeys(("AWS", "simulator", "moto"), ProbeResult("not run"))
    assert read_table(changed) == {("1", "another"): not_run}


def test_the_table_lists_all_facts_in_order_with_or_without_a_probe() -> None:
    page = with_table(EMPTY_PAGE, {}, [claim("15a"), claim("2"), claim("15")], [NotProbed("9", "no request shows it")])
    facts = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert facts == ["| fact", "| 2", "| 9", "| 15", "| 15a"]
    assert "| 9 | *not probed: no request shows it* | - | - | - |" in page


def test_a_table_edited_by_hand_and_a_page_without_marks_are_refused() -> None:
    page = with_table(EMPTY_PAGE, {}, [claim()], []).replace("not run yet", "surely")
    with pytest.raises(ValueError, match="'surely'"):
        with_table(page, {}, [claim()], [])
    with pytest.raises(ValueError, match="facts: begin"):
        with_table("no marks", {}, [claim()], [])


# the code for AWS, tested with moto


class MotoCloud:
    """The stack of the probes in moto instead of AWS, with a clock that sleeps advance."""

    def __init__(self) -> None:
        self.time = START
        sqs, functions = (boto3.client(service) for service in ("sqs", "lambda"))
        journal = sqs.create_queue(QueueName="facts-journal")["QueueUrl"]
        outputs = {"JournalUrl": journal, "Function": "obedient", "ThrottledFunction": "throttled"}
        self.stack = Stack("facts", outputs, sqs, functions, now=lambda: self.time, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        self.time += seconds + 0.001

    def with_functions(self) -> Stack:
        trust = {"Version": "2012-10-17", "Statement": []}
        made = boto3.client("iam").create_role(RoleName="facts", AssumeRolePolicyDocument=json.dumps(trust))
        for name in ("obedient", "throttled"):
            code = {"ImageUri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/none:latest"}
            self.stack.functions.create_function(
                FunctionName=name, PackageType="Image", Role=made["Role"]["Arn"], Code=code
            )
        return self.stack

    def queue_names(self) -> list[str]:
        return [url.rpartition("/")[2] for url in self.stack.sqs.list_queues().get("QueueUrls", [])]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoCloud]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.setattr(AwsPlatform, "long_poll_seconds", 0)  # a long poll of moto would wait for the clock of the test
    with mock_aws(config={"lambda": {"use_docker": False}}):
        cloud = MotoCloud()
        with clock_of_moto(lambda: cloud.time):
            yield cloud


@pytest.mark.parametrize("fact", ["2", "7", "24"])
def test_the_code_for_aws_gives_the_same_results_on_moto_as_the_code_for_moto(cloud: MotoCloud, fact: str) -> None:
    for probe in of_fact(fact):
        seen, recorded = run_probe(probe, aws(cloud.stack), TODAY), TABLE[probe.fact, probe.claim]["moto"]
        assert seen.kind == recorded.kind, probe.claim
        assert cloud.queue_names() == ["facts-journal"], probe.claim


def test_a_mapping_is_deleted_with_its_queue_or_swept_after_a_killed_run(cloud: MotoCloud) -> None:
    stack = cloud.with_functions()

    def mappings() -> list[Any]:
        return list(stack.functions.list_event_source_mappings()["EventSourceMappings"])

    with stack.platform() as platform:
        url = platform.queue(VisibilityTimeout=60)
        platform.connect(url, BatchSize=1, FunctionResponseTypes=["ReportBatchItemFailures"])
        platform.connect(platform.queue(VisibilityTimeout=60), throttled=True, BatchSize=1)
        assert [each["FunctionArn"].rpartition(":")[2] for each in mappings()] == ["obedient", "throttled"]
        assert mappings()[0]["EventSourceArn"] == platform.arn(url)
    assert (mappings(), cloud.queue_names()) == ([], ["facts-journal"])
    killed = AwsPlatform(stack)
    killed.connect(killed.queue(VisibilityTimeout=60), BatchSize=1)
    stack.sqs.create_queue(QueueName="foreign-queue")
    stack.sweep()
    assert (mappings(), sorted(cloud.queue_names())) == ([], ["facts-journal", "foreign-queue"])


def test_the_function_writes_its_invocations_to_the_journal(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_sqs", None)
    monkeypatch.setenv("JOURNAL_URL", cloud.stack.outputs["JournalUrl"])
    with cloud.stack.platform() as platform:
        url = platform.queue()
        message_id = platform.send(url, {"1": {"fail": True, "visibility": 600}})
        record = event_record(platform.receive_one(url), platform.arn(url), "us-east-1")
        answer = app.handler({"Records": [record]}, Context(9))
        assert answer == {"batchItemFailures": [{"itemIdentifier": message_id}]}
        [invocation] = platform.invoked(url)
        assert (invocation.ids, invocation.receives, invocation.left_ms) == ([message_id], [1], 9_000)
        assert invocation.ended is not None
        platform.wait(500)
        assert platform.depth(url)["in_flight"] == 1


def test_an_interrupted_probe_deletes_its_queues_and_one_without_permission_was_not_run(cloud: MotoCloud) -> None:
    def interrupted(platform: Platform) -> None:
        platform.queue()
        raise KeyboardInterrupt

    def denied(**_: Any) -> None:
        raise cloud.stack.sqs.exceptions.ClientError({"Error": {"Code": "AccessDenied"}}, "CreateQueue")

    with pytest.raises(KeyboardInterrupt):
        run_probe(Probe("1", "a claim", interrupted, "seconds", frozenset()), aws(cloud.stack), TODAY)
    assert cloud.queue_names() == ["facts-journal"]
    cloud.stack.sqs.meta.events.register("before-call.sqs.CreateQueue", denied)
    assert run_probe(of_fact("2")[0], aws(cloud.stack), TODAY) == ProbeResult("not run", "CreateQueue: AccessDenied")


def test_a_stack_is_found_by_its_name(cloud: MotoCloud) -> None:
    outputs = {"JournalUrl": {"Value": "https://queue"}, "Function": {"Value": "one"}}
    template = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}, "Outputs": outputs}
    boto3.client("cloudformation").create_stack(StackName="mine", TemplateBody=json.dumps(template))
    assert Stack.find("mine").outputs == {"JournalUrl": "https://queue", "Function": "one"}


def test_the_script_shows_the_costs_and_asks_before_it_uses_aws(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--stack", "mine"]) == 2
    output = capsys.readouterr().out
    assert all(text in output for text in ("less than 0.10 USD", "mine-probe-*", "--yes"))


def test_the_template_and_the_probes_use_the_same_names() -> None:
    template = yaml_parse(TEMPLATE.read_text("utf-8"))
    assert template["Globals"]["Function"]["Timeout"] == TIMEOUT_SECONDS
    assert template["Outputs"].keys() == {"JournalUrl", "Function", "ThrottledFunction"}
    [policy] = template["Resources"]["Role"]["Properties"]["Policies"]
    [consume] = [each for each in policy["PolicyDocument"]["Statement"] if each["Sid"] == "ConsumeFromTheProbesQueues"]
    assert consume["Resource"]["Fn::Sub"].endswith(":" + Stack.prefix_of("${AWS::StackName}") + "*")
