"""The pytest plugin in the test run of a user."""

import subprocess
import sys
from collections.abc import Callable

import moto.sqs  # noqa: F401 without it, each inner run would import it again, which takes a second
import pytest

import tarry.tools.testing.sandbox  # noqa: F401

pytest_plugins = ["pytester"]

PLUGIN = "tarry.testing.plugin"
CONSUMER = """
    import pytest
    from tarry import Fixed, Message, Queue, consumer
    from tarry.testing import Realism, Sandbox

    class GatewayDown(Exception): ...

    @consumer(max_attempts=2, backoff=Fixed(3600))
    def handler(message: Message) -> None:
        raise GatewayDown("no answer")
"""


Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    def run(test: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_orders=CONSUMER + test)
        plugins = ("-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:randomly")  # the output has the order of the file
        return pytester.runpytest_inprocess(*plugins, "--strict-markers", *arguments)

    return run


ORDERS = """
    @pytest.fixture
    def system(sandbox):
        assert sandbox.sqs.queues() == []
        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(handler, "orders")
        return sandbox
"""


def test_each_test_has_its_own_sandbox_which_a_fixture_may_use(run: Run) -> None:  # SPEC N4
    """A failing test shows the seed, the timelines and the command to repeat it, once."""
    test = """
    @pytest.mark.parametrize("number", [1, 2])
    def test_it(system, number):
        order = Queue("orders").send({"id": number})
        assert system.run().state(order) == "DEAD_LETTERED"

    def test_that_fails(system):
        order = system.send("orders", {"id": 7})
        assert system.run().state(order) == "COMMITTED"

    def test_with_a_sandbox_of_its_own():
        with Sandbox() as sandbox:
            assert sandbox.sqs.queues()

    @pytest.fixture
    def broken(sandbox):
        sandbox.send("orders", "1")
        raise ValueError("the fixture is broken")

    def test_of_a_broken_fixture(system, broken): ...

    @pytest.mark.sandbox(sede=3)
    def test_of_a_wrong_marker(sandbox): ...
    """
    result = run(ORDERS + test, "--tarry-seed=7")
    result.assert_outcomes(passed=2, failed=2, errors=2)
    result.stdout.fnmatch_lines(["*unexpected keyword argument 'sede'*"])
    result.stdout.fnmatch_lines(
        [
            "1 DEAD_LETTERED, after 1 h 1 s, seed 7",
            "",
            'message * {"id":7}',
            "  0:00:00.0  READY          in orders",
            "  0:00:00.*  IN_FLIGHT      attempt 1",
            "  0:00:00.*  WAITING_RETRY  for 1 h: GatewayDown: no answer",
            "  1:00:00.*  IN_FLIGHT      attempt 2",
            "  1:00:00.*  DEAD_LETTERED  in orders-dlq, exhausted: GatewayDown: no answer",
            "",
            "to repeat it: pytest test_orders.py::test_that_fails --tarry-seed 7",
        ],
        consecutive=True,
    )
    result.stdout.fnmatch_lines(["*- sandbox, seed 7 -*", "1 READY, after 0 s, seed 7, *"])
    assert result.stdout.str().count("- sandbox, seed 7 -") == 2, "of the test and of the fixture"


LOSES = """
    def loses_failures_of_batches(event, context):
        response = handler(event, context)
        return {"batchItemFailures": []} if len(event["Records"]) > 1 else response

    @pytest.fixture
    def system(sandbox):
        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(loses_failures_of_batches, "orders")
        return sandbox
"""


def test_a_test_that_breaks_a_rule_shows_the_fewest_messages_and_faults_that_do(run: Run) -> None:
    """It runs again with its fixtures, and other tests as if nothing had happened."""
    test = (
        LOSES
        + """
    made = []

    @pytest.fixture(scope="module")
    def of_the_module():
        made.append("module")
        yield
        made.clear()

    @pytest.mark.sandbox(realism=Realism(reorder=True, duplicate=0.2))
    @pytest.mark.parametrize("count", [30])
    def test_it(of_the_module, system, monkeypatch, capsys, caplog, tmp_path, count):
        assert made == ["module"]
        (tmp_path / "made").mkdir(exist_ok=True)
        print("shown once")
        system.faults.add("throttle", times=None, chance=0.3)
        for number in range(count):
            system.send("orders", {"id": number})
        system.run()

    def test_after_it(of_the_module, sandbox):
        assert made == ["module"]
        sandbox.queue("orders")
        assert sandbox.sqs.queues() == ["orders"]
    """
    )
    result = run(test, "--tarry-seed=3")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*RuleBroken: * violations, seed 3",
            "E*no message is lost: deleted, though it was not finished: its handler's verdict was 'fail'*",
            "E*0:00:00.*  WAITING_RETRY  for 1 h: GatewayDown: no answer",
            "E*0:00:00.*  COMMITTED      deleted, though it was WAITING_RETRY",
            "*- sandbox, seed 3 -*",
            "*, seed 3",
            "to repeat it: pytest 'test_orders.py::test_it[[]30[]]' --tarry-seed 3",
            "*- sandbox, seed 3, shrunk after teardown -*",
            "the smallest case found, after * runs: 2 of 30 messages, 0 of * faults, 0 of 2 random behaviors",
            "  0:00:00.0  {*} sent to orders",
            "  0:00:00.0  {*} sent to orders",
            "",
            "no message is lost: *",
            "message * {*}",
            "  0:00:00.0  READY          in orders",
            "  0:00:00.3  IN_FLIGHT      attempt 1",
            "  0:00:00.*  WAITING_RETRY  for 1 h: GatewayDown: no answer",
            "  0:00:00.*  COMMITTED      deleted, though it was WAITING_RETRY",
        ]
    )
    assert result.stdout.str().count("shown once") == 2, "in the source of the test and as its output"


def test_a_case_that_needs_a_fault_keeps_it_and_a_case_without_a_smaller_one_says_why(run: Run) -> None:
    test = """
    runs = []

    def loses_if_throttled(event, context):
        response = handler(event, context)
        throttled = any(each.what == "fault" and each.fields["operation"] == CHANGE for each in world.report().events)
        return {"batchItemFailures": []} if throttled else response

    CHANGE = "ChangeMessageVisibilityBatch"

    def test_with_a_fault(sandbox):
        global world
        world = sandbox
        sandbox.queue("orders", dead_letter="orders-dlq")
        sandbox.connect(loses_if_throttled, "orders")
        sandbox.faults.add("throttle", operation="GetQueueAttributes")
        sandbox.faults.add("throttle", operation=CHANGE)
        for number in range(5):
            sandbox.send("orders", {"id": number})
        sandbox.run()

    def test_once(sandbox):
        runs.append(1)
        sandbox.queue("orders", dead_letter="orders-dlq")
        loses = lambda event, context: handler(event, context) and None
        sandbox.connect(loses if len(runs) == 1 else handler, "orders")
        sandbox.send("orders", "1")
        sandbox.run()

    def test_a_fault_that_never_occurs(sandbox):
        sandbox.queue("orders")
        sandbox.faults.add("throttle")
        sandbox.run()
    """
    result = run(test)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        [
            "the smallest case found, after * runs: 1 of 5 messages, 1 of 2 faults",
            "  0:00:00.0  {*} sent to orders",
            "  0:00:00.*  ! throttle of ChangeMessageVisibilityBatch on orders",
            "*- sandbox, seed 0, shrunk after teardown -*",
            "the test did not break the rule when it ran again with the same seed, so the case cannot be shrunk: *",
        ]
    )
    assert result.stdout.str().count("shrunk after teardown") == 2


def test_seeds_run_each_test_with_the_sandbox_and_the_first_that_fails_is_named(run: Run) -> None:
    test = """
    @pytest.mark.parametrize("more", [1])
    def test_it(sandbox, more):
        assert sandbox.seed % 5 < 3

    @pytest.mark.sandbox(seed=7)
    def test_from_its_own_seed(sandbox):
        print(f"seed {sandbox.seed}.")

    def test_without_it(): ...
    """
    result = run(test, "--tarry-seeds=5", "-s")
    result.assert_outcomes(passed=3 + 5 + 1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*seed 7.*",
            "*seed 11.*",
            "*= sandbox: seeds that fail =*",
            "test_orders.py::test_it[[]1[]]: 2 of 5 seeds failed, first 3",
            "  to repeat it: pytest 'test_orders.py::test_it[[]1[]]' --tarry-seed 3",
        ]
    )
    result = run(test, "--tarry-seeds=2", "--tarry-seed=12", "-k", "test_it")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["test_orders.py::test_it[[]1[]]: 1 of 2 seeds failed, first 13"])
    run(test, "--tarry-seeds=0").stderr.fnmatch_lines(["ERROR: --tarry-seeds is a number of seeds from 1, got 0"])


def test_only_the_first_case_of_a_test_is_shrunk(run: Run) -> None:
    test = """
    def test_it(system):
        system.send("orders", "1")
        system.send("orders", "2")
        system.run()
    """
    result = run(LOSES + test, "--tarry-seeds=3")
    result.assert_outcomes(failed=3)
    assert result.stdout.str().count("the smallest case found") == 1


def test_the_marker_configures_the_sandbox_and_the_command_line_overrides_its_seed(run: Run) -> None:
    test = """
    @pytest.mark.sandbox(seed=3, realism=Realism(reorder=True), start=1e9)
    def test_it(sandbox):
        print(f"seed {sandbox.seed} at {sandbox.now:.0f}")
    """
    run(test, "-s").stdout.fnmatch_lines(["*seed 3 at 1000000000*"])
    run(test, "-s", "--tarry-seed=5").stdout.fnmatch_lines(["*seed 5 at 1000000000*"])


def test_cached_queue_attributes_do_not_outlive_their_test(run: Run) -> None:
    """The queue of the second test has another dead-letter queue; the cache would keep the first one for 15 minutes."""
    result = run("""
    import boto3, json
    from moto import mock_aws
    from tarry.testing import lambda_context, sqs_event
    from tarry import Message, consumer

    @consumer
    def rejects(message: Message) -> None:
        message.reject("no")

    @pytest.fixture(autouse=True)
    def aws(monkeypatch):
        for name, value in {"DEFAULT_REGION": "us-east-1", "ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with mock_aws():
            yield

    @pytest.mark.parametrize("dead_letters", ["first-dlq", "second-dlq"])
    def test_it(dead_letters):
        sqs = boto3.client("sqs")
        dead = sqs.create_queue(QueueName=dead_letters)["QueueUrl"]
        policy = {"deadLetterTargetArn": f"arn:aws:sqs:us-east-1:123456789012:{dead_letters}", "maxReceiveCount": 5}
        url = sqs.create_queue(QueueName="orders", Attributes={"RedrivePolicy": json.dumps(policy)})["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="1")
        [received] = sqs.receive_message(QueueUrl=url)["Messages"]
        event = sqs_event("1")
        event["Records"][0].update(messageId=received["MessageId"], receiptHandle=received["ReceiptHandle"])
        assert rejects(event, lambda_context()) == {"batchItemFailures": []}
        assert len(sqs.receive_message(QueueUrl=dead)["Messages"]) == 1
    """)
    result.assert_outcomes(passed=2)


def test_tarrys_own_client_reaches_aws_only_in_a_test_that_asks_for_it(run: Run) -> None:
    """The inner tests replace the network below botocore: whatever arrives there would have been sent."""
    result = run(
        """
    import os, threading
    from urllib.parse import urlsplit
    import boto3, botocore.httpsession
    from tarry.testing import lambda_context, sqs_event

    hosts = []

    class Sent(Exception): ...

    @pytest.fixture(autouse=True)
    def network(monkeypatch):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_CONFIG_FILE", "none")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")

        def send(session, request):
            hosts.append(urlsplit(request.url).hostname)
            raise Sent

        monkeypatch.setattr(botocore.httpsession.URLLib3Session, "send", send)
        hosts.clear()

    def failed():
        return len(handler(sqs_event({}, {}), lambda_context())["batchItemFailures"])

    def test_a_failed_message_is_reported_without_credentials_or_a_region():
        assert failed() == 2
        assert hosts == []

    def test_in_a_thread_as_well():
        failures = []
        thread = threading.Thread(target=lambda: failures.append(failed()))
        thread.start()
        thread.join()
        assert failures == [2]
        assert hosts == []

    def test_a_queue_says_why():
        with pytest.raises(Exception, match="NotSentInTests.*tests do not reach AWS: use the fixture `sandbox`"):
            Queue("orders").send("1")

    def test_a_local_endpoint(monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://localstack:4566")
        assert failed() == 2
        assert set(hosts) == {"localstack"}

    def test_a_client_of_the_user():
        mine = boto3.client("sqs", "eu-west-1", aws_access_key_id="mine", aws_secret_access_key="mine")
        with pytest.raises(Sent):
            mine.list_queues()
        with pytest.raises(Sent):
            Queue("https://sqs.eu-west-1.amazonaws.com/123456789012/orders", sqs=mine).send("1")
        assert set(hosts) == {"sqs.eu-west-1.amazonaws.com"}

    @pytest.mark.tarry_aws
    def test_that_asks_for_it(monkeypatch):
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mine")
        assert failed() == 2
        assert set(hosts) == {"sqs.eu-central-1.amazonaws.com"}
    """,
        "-Wdefault::pytest.PytestWarning",
    )
    result.assert_outcomes(passed=6, warnings=3)
    result.stdout.fnmatch_lines(
        ["*PytestWarning: tarry sent no request to SQS, since tests do not reach AWS; failed messages are*"]
    )


def test_the_plugin_does_not_import_boto3_or_the_simulator() -> None:
    """pytest loads the plugin in every run of every user who has tarry installed."""
    program = f"import sys, pytest; before = set(sys.modules); import {PLUGIN}; print(*set(sys.modules) - before)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = run.stdout.split()
    assert PLUGIN in loaded
    heavy = {"boto3", "botocore", "asyncio", "tarry.tools.simulator"}
    assert not {*heavy, "tarry.tools.testing.sandbox", "tarry.tools.testing.own_client"} & {*loaded}


def test_the_plugin_is_loaded_once_if_it_is_installed_and_named_on_the_command_line(
    pytester: pytest.Pytester,
) -> None:
    """The entry point has the name of the module, and pytest loads plugins of the same name once."""
    metadata = pytester.mkdir("site") / "installed-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{PLUGIN} = {PLUGIN}\n")
    pytester.makepyfile("def test_it(sandbox): ...")
    pytester.syspathinsert(metadata.parent)
    pytester.runpytest_inprocess("-p", PLUGIN).assert_outcomes(passed=1)
