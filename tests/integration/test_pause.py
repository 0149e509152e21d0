"""`tarry pause` and `tarry resume`: on moto, and on the model of Lambda's mappings, which the guard changes too."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ReadTimeoutError
from moto import mock_aws
from typer.testing import CliRunner, Result

from tarry.guard import operations
from tarry.guard.decision import GuardLimits, Note, Phase, Setting
from tarry.guard.operations import TAG, Clients
from tarry.tools.cli import pause
from tarry.tools.cli.app import app
from tarry.tools.cli.failed.targets import AwsAccess
from tarry.world import World, use
from tests.mappings import LambdaAtOnce
from tests.served import served
from tests.wire import TestClock, arn, client_error


def template() -> str:
    """Return the template of two functions and their queues."""
    role: dict[str, Any] = {"AssumeRolePolicyDocument": {}}
    resources = {"Role": ("IAM::Role", role)}
    same = {"Runtime": "python3.13", "Handler": "app.handler", "Code": {"ZipFile": "x"}}
    for function, queues in (("Handler", ("Orders", "Refunds")), ("Other", ("Orders",))):
        properties = {**same, "FunctionName": function.lower(), "Role": {"Fn::GetAtt": ["Role", "Arn"]}}
        resources[function] = ("Lambda::Function", properties)
        for queue in queues:
            resources[queue] = ("SQS::Queue", {"QueueName": queue.lower()})
            mapping = {"FunctionName": {"Ref": function}, "EventSourceArn": {"Fn::GetAtt": [queue, "Arn"]}}
            resources[f"{function}Of{queue}"] = ("Lambda::EventSourceMapping", mapping)
    return json.dumps(
        {"Resources": {name: {"Type": f"AWS::{kind}", "Properties": of} for name, (kind, of) in resources.items()}}
    )


class Shop:
    """A stack of two functions and their queues on moto."""

    def __init__(self) -> None:
        self.sqs: Any = boto3.client("sqs")
        self.aws: Any = boto3.client("lambda")
        boto3.client("cloudformation").create_stack(StackName="shop", TemplateBody=template())

    def states(self) -> dict[tuple[str, str], str]:
        found = self.aws.list_event_source_mappings()["EventSourceMappings"]
        return {
            (each["EventSourceArn"].split(":")[5], each["FunctionArn"].split(":")[6]): each["State"] for each in found
        }


def run(*arguments: str) -> Result:
    place = () if {"--endpoint-url", "--stack"} & {*arguments} else ("--aws",)
    return CliRunner().invoke(app, [*arguments, *place])


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with mock_aws():
        yield Shop()


OFF, ON = "Enabled -> Disabled\n", "Disabled -> Enabled\n"


def test_a_function_a_queue_and_a_stack_are_paused_and_resumed(shop: Shop, tmp_path: Path) -> None:
    result = run("pause", "--queue", "orders")
    assert (result.exit_code, result.stdout) == (0, f"orders -> handler: {OFF}orders -> other: {OFF}")
    assert result.stderr == (
        "AWS 123456789012 us-east-1\n"
        "Messages wait in their queue until its retention period ends. To resume: tarry resume --queue orders --aws\n"
    )
    assert shop.states()["refunds", "handler"] == "Enabled"
    result = run("pause", "handler", "--json")
    before = {each["queue"]: (each["before"], each["after"]) for each in map(json.loads, result.stdout.splitlines())}
    assert before == {"orders": ("Disabled", "Disabled"), "refunds": ("Enabled", "Disabled")}
    assert run("resume", "handler").exit_code == 0
    assert run("resume", "--queue", "orders").stdout == f"orders -> handler: Enabled (unchanged)\norders -> other: {ON}"
    mappings = ["orders -> handler", "orders -> other", "refunds -> handler"]
    for arguments, chosen in (("", mappings), ("Handler", mappings[::2]), ("--queue Orders", mappings[:2])):
        for command, change in (("pause", OFF), ("resume", ON)):
            result = run(command, *arguments.split(), "--stack", "shop")
            assert result.stdout == "".join(f"{mapping}: {change}" for mapping in chosen)
    begun, *lines = [json.loads(line) for line in (tmp_path / "tarry/audit.jsonl").read_text().splitlines()]
    assert ("changes" in begun, begun["run"]) == (False, lines[0]["run"])
    of_queue, of_function, resumed, *_ = [line for line in lines if "ended_at" in line]
    assert [each["command"] for each in (of_queue, of_function, resumed)] == [*["tarry pause"] * 2, "tarry resume"]
    assert (of_queue["queue"], of_queue["changes"][0]["after"]) == ("orders", "Disabled")
    assert of_function["function"] == "handler"


class Slow:
    """Lambda's client, for which a change takes some looks."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.looks, self.refusals, self.needed = 0, 2, 5

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def update_event_source_mapping(self, **parameters: Any) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise client_error("ResourceInUseException")
        return self._client.update_event_source_mapping(**parameters)

    def get_event_source_mapping(self, **parameters: Any) -> Any:
        self.looks += 1
        found = self._client.get_event_source_mapping(**parameters)
        return found if self.looks >= self.needed else {**found, "State": "Disabling"}


SUSPENDED = Note("suspended", 1_800_000_720, 1_800_000_720, 20, Setting(False, 20), Setting(False, 20))


def _confirmed(phase: Phase, setting: Setting) -> Note:
    return SUSPENDED._replace(phase=phase, setting=setting, before=setting)


PHASES = {
    "suspended": SUSPENDED,
    "suspended, without an answer": SUSPENDED._replace(before=Setting(True, 20)),
    "probing": _confirmed("probing", Setting(True, 2)),
    "judging": _confirmed("judging", Setting(False, 2)),
    "resuming": _confirmed("resuming", Setting(True, 10)),
    "left": _confirmed("left", Setting(True, 20)),
    "without a limit": _confirmed("probing", Setting(True, 2))._replace(former=None),
}
READING = {"list_event_source_mappings", "get_event_source_mapping", "list_tags"}


class Killed(BaseException):
    """The process of the command ends."""


class Guarded(LambdaAtOnce):
    """Lambda's client with one mapping, of the function `other`, which the guard has changed."""

    def __init__(self, kept: Note | None) -> None:
        super().__init__("other", ["orders"])
        [self.mapping] = self.mappings
        self.uuid = self.mapping.mapping.uuid
        self.arn = self.aws.get_event_source_mapping(UUID=self.uuid)["EventSourceMappingArn"]
        if kept is not None:
            self.mapping.tags[TAG] = kept.text()
            self.mapping.set_to(kept.setting)

    @property
    def changes(self) -> list[tuple[str, dict[str, Any]]]:
        return [each for each in self.requests if each[0] not in READING]

    @property
    def now(self) -> tuple[str, int | None, dict[str, str]]:
        """The mapping's state, its MaximumConcurrency and its tags."""
        return self.mapping.state, self.mapping.maximum_concurrency, self.mapping.tags

    def change(self, command: str) -> dict[str, str]:
        """Pause or resume the mapping without the command line; return the result."""
        account: Any = SimpleNamespace(client=lambda _: self)
        first = pause.Mapping(self.uuid, "orders", "other", "?", "", "")
        with use(World(clock=TestClock())):
            [result] = pause.change(
                account, [first], enabled=command == "resume", progress=lambda _: None, stop=lambda: False
            )
        return result

    def look(self) -> None:
        """Let the guard look, without metrics."""
        metrics = SimpleNamespace(
            get_metric_data=lambda **_: {"ResponseMetadata": {}, "MetricDataResults": []},
            get_metric_statistics=lambda **_: {"Datapoints": []},
        )
        backlog = {"MessageRetentionPeriod": "345600", "ApproximateNumberOfMessages": "0"}
        queues = SimpleNamespace(
            get_queue_url=lambda **_: {"QueueUrl": ""}, get_queue_attributes=lambda **_: {"Attributes": backlog}
        )
        consumer = operations.Guarded("other", "orders", self.uuid)
        with use(World(clock=TestClock(SUSPENDED.at + 60))):
            [*operations.guard([consumer], "shop", GuardLimits(), Clients(self.aws, metrics, queues))]


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Note | None], Guarded]:
    """Return a function that makes the client of Lambda that the commands use."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("tarry.tools.cli.pause.current", lambda: SimpleNamespace(clock=TestClock(0.0)))

    def make(kept: Note | None) -> Guarded:
        found = Guarded(kept)
        monkeypatch.setattr(AwsAccess, "client", lambda *_: found)
        monkeypatch.setattr(AwsAccess, "identity", lambda _: "arn:aws:iam::123456789012:user/me")
        return found

    return make


def test_it_waits_until_the_state_holds_and_says_if_it_does_not(
    guarded: Callable[[None], Guarded], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, clock = Slow(guarded(None)), TestClock(0.0)
    monkeypatch.setattr("tarry.tools.cli.pause.current", lambda: SimpleNamespace(clock=clock))
    monkeypatch.setattr(AwsAccess, "client", lambda *_: slow)
    result = run("pause", "other")
    assert (result.exit_code, result.stdout) == (0, f"orders -> other: {OFF}")
    assert (slow.looks, clock.now) == (8, 6)  # it is asked at the fifth look, again after two refusals, then it holds
    slow.looks, slow.needed = 0, 10_000
    monkeypatch.setattr(slow, "update_event_source_mapping", lambda **_: None)
    result = run("resume", "other")
    assert result.exit_code == 1
    assert "failed: not Enabled after 300 s; Lambda may still change it" in result.stdout


def test_resume_gives_a_suspended_mapping_its_former_setting_and_tells_it(
    guarded: Callable[[Note], Guarded], tmp_path: Path
) -> None:
    lambda_ = guarded(PHASES["probing"])
    result = run("resume", "other")
    ended = "the guard's suspension has ended: enabled with MaximumConcurrency 20"
    assert (result.exit_code, result.stdout) == (0, f"orders -> other: Enabled (unchanged); {ended}\n")
    asked = PHASES["probing"]._replace(phase="resumed", setting=Setting(True, 20))
    confirmed = asked._replace(before=asked.setting)
    tagged = [{"Resource": lambda_.arn, "Tags": {TAG: each.text()}} for each in (asked, confirmed)]
    former = {"UUID": lambda_.uuid, "Enabled": True, "ScalingConfig": {"MaximumConcurrency": 20}}
    assert lambda_.changes == [
        ("tag_resource", tagged[0]),
        ("update_event_source_mapping", former),
        ("tag_resource", tagged[1]),
        ("untag_resource", {"Resource": lambda_.arn, "TagKeys": [TAG]}),
    ]
    assert lambda_.now == ("Enabled", 20, {})
    line = json.loads((tmp_path / "tarry/audit.jsonl").read_text().splitlines()[-1])
    assert line["changes"][0]["guard"] == ended


def test_pause_leaves_a_mapping_to_the_person_also_one_that_the_guard_has_disabled(
    guarded: Callable[[Note], Guarded],
) -> None:
    lambda_ = guarded(SUSPENDED)
    result = run("pause", "other")
    ended = "the guard's suspension has ended: disabled with MaximumConcurrency 20"
    assert result.stdout == f"orders -> other: Disabled (unchanged); {ended}\n"
    assert lambda_.changes == [("untag_resource", {"Resource": lambda_.arn, "TagKeys": [TAG]})]
    lambda_ = guarded(PHASES["probing"])
    assert run("pause", "other").stdout == f"orders -> other: {OFF[:-1]}; {ended}\n"
    for _ in range(3):
        lambda_.look()
    assert lambda_.now == ("Disabled", 20, {})
    assert run("resume", "other").stdout == f"orders -> other: {ON}"
    assert lambda_.now == ("Enabled", 20, {})


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("command", ["resume", "pause"])
def test_whatever_request_fails_or_is_the_last_one_the_person_gets_what_they_asked_for(
    phase: str, command: str
) -> None:
    """The guard does the rest, once the command has told it what is asked for; before that, nothing has changed."""
    kept = PHASES[phase]
    wanted = ("Enabled" if command == "resume" else "Disabled", kept.former, dict[str, str]())
    errors = [Killed(), client_error("TooManyRequestsException"), ReadTimeoutError(endpoint_url="https://lambda")]
    for error, takes_effect in product(errors, [False, True]):
        for number in count():
            lambda_ = Guarded(kept)
            lambda_.error, lambda_.failing, lambda_.takes_effect = error, number, takes_effect
            with suppress(Killed):
                result = lambda_.change(command)
                if number < len(lambda_.requests):
                    assert str(error) in result["error"]
            if number >= len(lambda_.requests):
                break
            if len(lambda_.changes) > (not takes_effect and lambda_.requests[number] in lambda_.changes):
                for _ in range(3):
                    lambda_.look()
                assert lambda_.now == wanted
            else:
                assert lambda_.now[1:] == (kept.setting.maximum, {TAG: kept.text()})
            assert "error" not in lambda_.change(command)
            assert lambda_.now == wanted
        assert [each for each, _ in lambda_.changes][-1] == "untag_resource"


def test_without_permission_to_read_tags_only_the_state_changes(guarded: Callable[[Note], Guarded]) -> None:
    lambda_ = guarded(SUSPENDED)
    lambda_.error, lambda_.failing = client_error("AccessDeniedException"), "list_tags"
    result = run("resume", "other")
    assert (result.exit_code, result.stdout) == (0, f"orders -> other: {ON}")
    assert result.stderr.splitlines()[1:] == [
        "lambda:ListTags is denied: if the guard has changed a MaximumConcurrency, it stays as it is."
    ]
    changes = [("update_event_source_mapping", {"UUID": lambda_.uuid, "Enabled": True})]
    assert lambda_.changes == changes
    lambda_.look()
    assert lambda_.now[:2] == ("Enabled", 20)


def test_a_tag_that_is_not_the_guards_is_named_and_the_mapping_stays(guarded: Callable[[Note | None], Guarded]) -> None:
    lambda_ = guarded(None)
    lambda_.mapping.tags[TAG] = "mine"
    result = run("pause", "other")
    line = f"'mine' is not a note of the guard; remove the tag {TAG} from {lambda_.arn}"
    assert (result.exit_code, result.stdout) == (1, f"orders -> other: Enabled; failed: {line}\n")
    assert lambda_.changes == []


def test_a_mapping_that_the_guard_suspends_while_it_is_paused_stays_paused(
    guarded: Callable[[Note | None], Guarded],
) -> None:
    lambda_ = guarded(None)

    def suspended(**_: Any) -> None:
        lambda_.mapping.set_to(SUSPENDED.setting)
        lambda_.mapping.tags[TAG] = SUSPENDED.text()

    lambda_.__dict__["update_event_source_mapping"] = suspended
    assert run("pause", "other").exit_code == 0
    assert lambda_.now == ("Disabled", 20, {})


def test_a_concurrency_that_another_has_set_meanwhile_stays(guarded: Callable[[Note], Guarded]) -> None:
    lambda_ = guarded(SUSPENDED)
    lambda_.mapping.set_to(Setting(False, 50))
    assert "has ended: enabled with MaximumConcurrency 50" in run("resume", "other").stdout
    assert lambda_.now == ("Enabled", 50, {})


def test_wrong_usage_changes_nothing_and_neither_does_an_audit_that_cannot_be_written(shop: Shop) -> None:  # SPEC M6
    shop.sqs.create_queue(QueueName="dlq")
    redrive = json.dumps({"deadLetterTargetArn": arn("dlq"), "maxReceiveCount": 5})
    url = shop.sqs.get_queue_url(QueueName="refunds")["QueueUrl"]
    shop.sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive})
    for arguments, code, line in [
        ("", 2, "name what to pause: a function, a queue (--queue NAME), or a stack (--stack NAME)"),
        ("handler --queue orders", 2, "name what to pause: "),
        ("nope", 2, "function nope has no event source mapping of SQS"),
        ("--queue nope", 2, "queue 'nope' does not exist; existing queues: "),
        ("--queue dlq", 2, "queue dlq has no event source mapping of SQS; it is the dead-letter queue of refunds"),
        ("--stack nope", 2, "the stack does not exist"),
        ("handler --audit .", 1, "the audit file . cannot be written: Is a directory"),
    ]:
        result = run("pause", *arguments.split())
        assert (result.exit_code, result.stdout) == (code, "")
        assert f"tarry: {line}" in result.stderr
        assert set(shop.states().values()) == {"Enabled"}


def test_an_endpoint_without_lambda_is_an_error_that_says_so_and_lambda_is_not_asked_at_aws(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as sqs:
        sqs.queue("orders")
        at = ["--endpoint-url", sqs.url]
        results = [run("pause", "handler", *at), run("pause", "--queue", "orders", *at)]
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs.url)
        results.append(CliRunner().invoke(app, ["pause", "handler"]))
    for result in results:
        assert (result.exit_code, f"{sqs.url} has no event source mappings" in result.stderr) == (2, True)
    assert set(shop.states().values()) == {"Enabled"}
