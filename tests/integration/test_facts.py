"""The facts of docs/platform.md: the simulator holds them, and the page's table says what moto does today."""

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
from tarry.sqs.received import event_record
from tests.facts import __main__ as script
from tests.facts.function import app
from tests.facts.platforms.aws import AwsPlatform, Stack
from tests.facts.platforms.moto import START, clock_of_moto
from tests.facts.platforms.platform import TIMEOUT_SECONDS, Platform
from tests.facts.platforms.simulator import SimulatedPlatform, simulated_platform
from tests.facts.probe_result import ProbeResult, run_probe
from tests.facts.registry import NOT_PROBED, PROBES, NotProbed, Probe
from tests.facts.table import BEGIN, END, read_table, with_table
from tests.facts.targets import MOTO, SIMULATOR, Target, aws

TODAY = date(2026, 1, 2)
PAGE = script.PAGE.read_text("utf-8")
TABLE = read_table(PAGE)
TEMPLATE = Path(script.__file__).with_name("template.yaml")


def of_each(probes: list[Probe]) -> Any:
    return pytest.mark.parametrize("probe", probes, ids=[f"{each.fact} {each.run.__name__}" for each in probes])


def here(target: Target) -> list[Probe]:
    return [probe for probe in PROBES if probe.needs <= target.has]


def of_fact(fact: str) -> list[Probe]:
    return [probe for probe in PROBES if probe.fact == fact]


# the facts


@of_each(here(SIMULATOR))
def test_the_simulator_does_what_the_platform_does(probe: Probe) -> None:
    assert run_probe(probe, SIMULATOR, TODAY) == ProbeResult("holds", on=TODAY)


@of_each(here(MOTO))
def test_moto_does_what_the_page_says_of_it(probe: Probe) -> None:
    result, recorded = run_probe(probe, MOTO, TODAY), TABLE[probe.fact, probe.claim]["moto"]
    assert (result.kind, result.detail) == (recorded.kind, recorded.detail), "run make aws-facts"


def test_the_page_is_what_the_script_writes() -> None:
    assert with_table(PAGE, {}, PROBES, NOT_PROBED) == PAGE, "run make aws-facts"


def test_the_page_says_of_every_claim_what_the_simulator_does() -> None:
    expected = {(each.fact, each.claim): "holds" if each in here(SIMULATOR) else "absent" for each in PROBES}
    assert {key: recorded["simulator"].kind for key, recorded in TABLE.items()} == expected, "run make aws-facts"


def test_every_fact_of_the_page_has_a_probe_or_a_reason_to_have_none() -> None:
    numbered = [line[2:].partition(".**")[0] for line in PAGE.splitlines() if line.startswith("**") and ".**" in line]
    assert numbered[0] == "1"
    assert numbered[-1] == "33a"
    assert set(numbered) == {each.fact for each in [*PROBES, *NOT_PROBED]}


def test_the_page_marks_the_facts_in_which_moto_differs() -> None:
    paragraphs = [paragraph for paragraph in PAGE.split("\n\n") if paragraph.startswith("**")]
    marked = {paragraph[2:].partition(".**")[0] for paragraph in paragraphs if "△" in paragraph}
    assert {fact for (fact, _), recorded in TABLE.items() if recorded["moto"].kind == "differs"} <= marked


def test_no_claim_is_made_twice() -> None:
    claims = [(probe.fact, probe.claim) for probe in PROBES]
    assert len(claims) == len(set(claims))


class Careless(SimulatedPlatform):
    """Its mappings do not look at what a function reports, and filter nothing."""

    def connect(self, url: str, *, throttled: bool = False, **settings: Any) -> None:
        settings.pop("FunctionResponseTypes", None)
        settings.pop("FilterCriteria", None)
        super().connect(url, throttled=throttled, **settings)


def test_a_mapping_that_is_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.facts.platforms.simulator.SimulatedPlatform", Careless)
    careless = Target("careless", SimulatedPlatform.has, simulated_platform)
    seen = {fact: {run_probe(probe, careless, TODAY).kind for probe in of_fact(fact)} for fact in ("10", "12", "15c")}
    assert seen == {"10": {"holds", "differs"}, "12": {"differs"}, "15c": {"differs"}}


# the table


def claim(fact: str = "1", text: str = "a claim") -> Probe:
    return Probe(fact, text, lambda platform: None, "seconds", frozenset())


EMPTY_PAGE = f"before\n{BEGIN}\n{END}\nafter\n"
HOLDS = ProbeResult("holds", on=TODAY)
DIFFERS = ProbeResult("differs", "accepted: 1, 2 | <3>", TODAY)


def test_what_the_table_says_can_be_read_again() -> None:
    results = {("1", "a claim"): {"AWS": HOLDS, "simulator": ProbeResult("absent"), "moto": DIFFERS}}
    page = with_table(EMPTY_PAGE, results, [claim()], [])
    assert "| 1 | a claim | holds, 2026-01-02 | - | differs: accepted: 1, 2 / &lt;3>, 2026-01-02 |" in page
    recorded = read_table(page)["1", "a claim"]
    assert recorded == {
        "AWS": HOLDS,
        "simulator": ProbeResult("absent"),
        "moto": ProbeResult("differs", recorded["moto"].detail, TODAY),
    }
    assert with_table(page, {}, [claim()], []) == page


def test_what_was_not_run_keeps_what_was_shown_before() -> None:
    before = with_table(EMPTY_PAGE, {("1", "a claim"): {"AWS": HOLDS}}, [claim()], [])
    after = with_table(
        before, {("1", "a claim"): {"AWS": ProbeResult("not run", "AccessDenied"), "moto": HOLDS}}, [claim()], []
    )
    assert read_table(after)["1", "a claim"] == {"AWS": HOLDS, "simulator": ProbeResult("not run"), "moto": HOLDS}


def test_a_claim_that_has_changed_was_not_shown_yet() -> None:
    before = with_table(EMPTY_PAGE, {("1", "a claim"): {"AWS": HOLDS}}, [claim()], [])
    after = with_table(before, {}, [claim(text="another")], [])
    assert read_table(after) == {("1", "another"): dict.fromkeys(("AWS", "simulator", "moto"), ProbeResult("not run"))}


def test_facts_are_in_their_order_with_those_that_have_no_probe() -> None:
    page = with_table(EMPTY_PAGE, {}, [claim("15a"), claim("2"), claim("15")], [NotProbed("9", "no request shows it")])
    facts = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert facts == ["| fact", "| 2", "| 9", "| 15", "| 15a"]
    assert "| 9 | *not probed: no request shows it* | - | - | - |" in page


def test_a_table_that_somebody_has_edited_is_refused() -> None:
    page = with_table(EMPTY_PAGE, {}, [claim()], []).replace("not run yet", "surely")
    with pytest.raises(ValueError, match="'surely'"):
        with_table(page, {}, [claim()], [])


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="facts: begin"):
        with_table("no marks", {}, [claim()], [])


# AWS, as far as moto goes


class Context:
    aws_request_id = "1"

    def get_remaining_time_in_millis(self) -> int:
        return 9_000


class Cloud:
    """moto as a substitute for AWS: the probes' stack deployed, and a clock that sleeps advance."""

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
        role = boto3.client("iam").create_role(RoleName="facts", AssumeRolePolicyDocument=json.dumps(trust))["Role"][
            "Arn"
        ]
        for name in ("obedient", "throttled"):
            code = {"ImageUri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/none:latest"}
            self.stack.functions.create_function(FunctionName=name, PackageType="Image", Role=role, Code=code)
        return self.stack

    def left(self) -> list[str]:
        return [url.rpartition("/")[2] for url in self.stack.sqs.list_queues().get("QueueUrls", [])]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    monkeypatch.setattr(AwsPlatform, "long_poll_seconds", 0)  # a long poll of moto waits for the clock that we move
    with mock_aws(config={"lambda": {"use_docker": False}}):
        cloud = Cloud()
        with clock_of_moto(lambda: cloud.time):
            yield cloud


@of_each([probe for fact in ("2", "7", "24") for probe in of_fact(fact)])
def test_the_code_for_aws_sees_in_moto_what_the_code_for_moto_sees(cloud: Cloud, probe: Probe) -> None:
    seen, recorded = run_probe(probe, aws(cloud.stack), TODAY), TABLE[probe.fact, probe.claim]["moto"]
    assert seen.kind == recorded.kind
    assert cloud.left() == ["facts-journal"]


def test_a_mapping_is_made_and_deleted_with_its_queue(cloud: Cloud) -> None:
    stack = cloud.with_functions()
    with stack.platform() as platform:
        url = platform.queue(VisibilityTimeout=60)
        platform.connect(url, BatchSize=1, FunctionResponseTypes=["ReportBatchItemFailures"])
        platform.connect(platform.queue(VisibilityTimeout=60), throttled=True, BatchSize=1)
        made = stack.functions.list_event_source_mappings()["EventSourceMappings"]
        assert [each["FunctionArn"].rpartition(":")[2] for each in made] == ["obedient", "throttled"]
        assert made[0]["EventSourceArn"] == platform.arn(url)
    assert stack.functions.list_event_source_mappings()["EventSourceMappings"] == []
    assert cloud.left() == ["facts-journal"]


def test_the_function_tells_the_journal_what_it_does(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_sqs", None)
    monkeypatch.setenv("JOURNAL_URL", cloud.stack.outputs["JournalUrl"])
    with cloud.stack.platform() as platform:
        url = platform.queue()
        message_id = platform.send(url, {"1": {"fail": True, "visibility": 600}})
        record = event_record(platform.receive_one(url), platform.arn(url), "us-east-1")
        answer = app.handler({"Records": [record]}, Context())
        assert answer == {"batchItemFailures": [{"itemIdentifier": message_id}]}
        [invocation] = platform.invoked(url)
        assert (invocation.ids, invocation.receives, invocation.left_ms) == ([message_id], [1], 9_000)
        assert invocation.ended is not None
        platform.wait(500)
        assert platform.depth(url)["in_flight"] == 1


def test_a_probe_that_breaks_leaves_nothing(cloud: Cloud) -> None:
    def interrupted(platform: Platform) -> None:
        platform.queue()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_probe(Probe("1", "a claim", interrupted, "seconds", frozenset()), aws(cloud.stack), TODAY)
    assert cloud.left() == ["facts-journal"]


def test_what_a_killed_run_has_left_is_swept_away_and_nothing_else(cloud: Cloud) -> None:
    stack = cloud.with_functions()
    platform = AwsPlatform(stack)
    platform.connect(platform.queue(VisibilityTimeout=60), BatchSize=1)
    stack.sqs.create_queue(QueueName="somebody-elses")
    stack.sweep()
    assert stack.functions.list_event_source_mappings()["EventSourceMappings"] == []
    assert sorted(cloud.left()) == ["facts-journal", "somebody-elses"]


def test_a_stack_is_found_by_its_name(cloud: Cloud) -> None:
    outputs = {"JournalUrl": {"Value": "https://queue"}, "Function": {"Value": "one"}}
    template = {"Resources": {"Queue": {"Type": "AWS::SQS::Queue"}}, "Outputs": outputs}
    boto3.client("cloudformation").create_stack(StackName="mine", TemplateBody=json.dumps(template))
    assert Stack.find("mine").outputs == {"JournalUrl": "https://queue", "Function": "one"}


def test_what_is_refused_for_the_callers_sake_says_nothing_of_the_fact(cloud: Cloud) -> None:
    def denied(**_: Any) -> None:
        raise cloud.stack.sqs.exceptions.ClientError({"Error": {"Code": "AccessDenied"}}, "CreateQueue")

    cloud.stack.sqs.meta.events.register("before-call.sqs.CreateQueue", denied)
    assert run_probe(of_fact("2")[0], aws(cloud.stack), TODAY) == ProbeResult("not run", "CreateQueue: AccessDenied")


def test_before_aws_is_touched_the_costs_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--stack", "mine"]) == 2
    recorded = capsys.readouterr().out
    assert "less than 0.10 USD" in recorded
    assert "mine-probe-*" in recorded
    assert "--yes" in recorded


def test_the_template_and_the_probes_speak_of_the_same_things() -> None:
    template = yaml_parse(TEMPLATE.read_text("utf-8"))
    assert template["Globals"]["Function"]["Timeout"] == TIMEOUT_SECONDS
    assert template["Outputs"].keys() == {"JournalUrl", "Function", "ThrottledFunction"}
    [policy] = template["Resources"]["Role"]["Properties"]["Policies"]
    [consume] = [each for each in policy["PolicyDocument"]["Statement"] if each["Sid"] == "ConsumeFromTheProbesQueues"]
    assert consume["Resource"]["Fn::Sub"].endswith(":" + Stack.prefix_of("${AWS::StackName}") + "*")
