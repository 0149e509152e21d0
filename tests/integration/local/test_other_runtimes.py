"""Functions in other languages: those in Node.js run; the queues of all others are served."""

import shutil
from pathlib import Path

import pytest

from tarry.failed.usage import UsageError
from tarry.tools.local.functions.runtime import command_of
from tarry.tools.local.plan import RunSettings, make_plan
from tarry.tools.template import TemplateFunction
from tarry.tools.template.code import node

from .conftest import Project
from .process import LocalProcess
from .processes import Hosted, JobsFunction

needs_node = pytest.mark.skipif(node() is None, reason="there is no Node.js")

ANSWERS = """
const answers = {
  context: async (event, context) =>
    [context.functionName, context.awsRequestId, context.getRemainingTimeInMillis() > 0],
  promise: (event) => Promise.resolve({ got: event.value }),
  never: async () => { await new Promise(() => {}); },
  text: async () => { throw "no luck"; },
  loop: async () => { const own = {}; own.own = own; return own; },
  late: async () => { Promise.reject(new RangeError("late")); await new Promise((done) => setTimeout(done, 9000)); },
  say: async () => { console.error("said", new Error("so")); process.stdout.write("plain"); },
  callback: (event, context, callback) => { setTimeout(() => callback(null, "called back"), 1); },
  failing: (event, context, callback) => callback(new TypeError("not so")),
  waiting: (event, context, callback) => { setTimeout(() => { result.value = 2; }, 5); callback(null, result); },
  ending: (event, context, callback) => {
    context.callbackWaitsForEmptyEventLoop = false;
    setInterval(() => {}, 1000);
    callback(null, "at once");
  },
  pid: async () => process.pid,
};
const result = { value: 1 };
"""
HANDLER = "handler = (event, context, callback) => answers[event.do](event, context, callback);"
MODULES = {
    "src/index.js": f"{ANSWERS} exports.{HANDLER}",
    "src/index.mjs": f"import fs from 'node:fs'; {ANSWERS} await null; export const {HANDLER}",
    "package.json": '{"type": "module"}',
}


def with_module(folder: Path, kind: str) -> JobsFunction:
    jobs = JobsFunction(folder, "own")
    (folder / "src").mkdir()
    jobs.code(MODULES[kind], kind)
    if kind == "package.json":
        jobs.code(MODULES["src/index.mjs"], "src/index.js")
    return jobs


NODE = {"handler": "src/index.handler", "runtime": "nodejs22.x"}


@needs_node
@pytest.mark.parametrize("kind", MODULES)
def test_a_handler_in_nodejs_runs_as_on_lambda(tmp_path: Path, kind: str) -> None:
    async def scenario(hosted: Hosted) -> None:
        answer = await hosted.call(do="context")
        assert answer.value == ["jobs", answer.request_id, True]
        assert await hosted.value(do="promise", value=7) == {"got": 7}
        assert await hosted.value(do="never") is None
        assert await hosted.value(do="callback") == "called back"
        assert await hosted.value(do="waiting") == {"value": 2}
        assert await hosted.value(do="ending") == "at once"
        assert (await hosted.call(do="failing")).text == "TypeError: not so"
        assert (await hosted.call(do="text")).text == "string: no luck"
        assert (await hosted.call(do="loop")).text.startswith("Runtime.JSONStringifyError: Unable to stringify")
        error = await hosted.call(do="nothing")
        assert error.text == "TypeError: answers[event.do] is not a function"
        assert len(error.value["trace"]) == 2  # the error and its place, without frames of the client
        await hosted.value(do="say")
        fields = hosted.events("logged")[-2].fields["fields"]
        assert (fields["level"], fields["message"], fields["errorMessage"]) == ("ERROR", "said Error: so", "so")
        assert hosted.lines[-1] == "plain"
        before = await hosted.value(do="pid")
        assert (await hosted.call(do="late")).text == "Runtime.UnhandledPromiseRejection: late"
        assert await hosted.value(do="pid") != before

    with_module(tmp_path, kind).play(scenario, **NODE)


@needs_node
@pytest.mark.parametrize(
    ("code", "runtime", "problem"),
    [
        ("require('not-there')", "nodejs22.x", "not-there is not installed. To install it: cd "),
        ("const =", "nodejs22.x", "Runtime.UserCodeSyntaxError: SyntaxError: Unexpected token '='"),
        ("exports.other = 1", "nodejs22.x", "Runtime.HandlerNotFound: src/index.handler is undefined or not exported"),
        ("exports.handler = (a, b, c) => {}", "nodejs24.x", "Runtime.CallbackHandlerDeprecated: src/index.handler has"),
    ],
)
def test_a_handler_in_nodejs_that_lambda_cannot_load_is_refused(
    tmp_path: Path, code: str, runtime: str, problem: str
) -> None:
    async def scenario(hosted: Hosted) -> None:
        with pytest.raises(UsageError, match="cannot be imported") as caught:
            await hosted.host.warm()
        assert problem in str(caught.value)

    jobs = with_module(tmp_path, "src/index.js")
    jobs.code(code, "src/index.js")
    jobs.play(scenario, **{**NODE, "runtime": runtime})


def test_the_client_of_aws_for_nodejs_runs_a_handler_where_it_is_compiled(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "aws-lambda-ric"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"bin": {"aws-lambda-ric": "bin/index.mjs"}}')
    function = TemplateFunction("Jobs", "jobs", "", tmp_path / "src", "index.handler", runtime="nodejs22.x")
    assert command_of(function, "own")[1].endswith("/local/functions/client.mjs")
    (package / "rapid-client.node").touch()
    assert command_of(function, "own")[1:] == [str(package / "bin/index.mjs"), "index.handler"]


TEMPLATE = """
Transform: AWS::Serverless-2016-10-31
Resources:
  Jobs: {Type: AWS::SQS::Queue}
  Orders: {Type: AWS::SQS::Queue}
  Bills: {Type: AWS::SQS::Queue}
  Script:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: script, Timeout: 1, Handler: index.handler, Runtime: nodejs22.x, Events: {E: JOBS}}
  Plain:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: plain, Handler: app.handler, Runtime: python3.13, Events: {E: ORDERS}}
  Biller:
    Type: AWS::Serverless::Function
    Properties: {CodeUri: bills, Handler: "shop.Biller::handle", Runtime: java21, Events: {E: BILLS}}
"""
for name in ("Jobs", "Orders", "Bills"):
    properties = f"{{Queue: !GetAtt {name}.Arn, FunctionResponseTypes: [ReportBatchItemFailures]}}"
    TEMPLATE = TEMPLATE.replace(f"E: {name.upper()}", f"E: {{Type: SQS, Properties: {properties}}}")
BILLER = "Bills is served, but Biller is not run here: its runtime is java21; tarry runs Python and Node.js"
SCRIPT = """
exports.handler = async (event) => ({
  batchItemFailures: event.Records.map((record) => ({ itemIdentifier: record.messageId }))
    .filter((_, place) => event.Records[place].attributes.ApproximateReceiveCount === "1"),
});
"""


@pytest.fixture
def mixed(project: Project) -> Project:
    project.write("template.yaml", TEMPLATE)
    project.write("plain/app.py", "def handler(event, context): print('handled')")
    project.write("script/index.js", SCRIPT)
    return project


JOBS_AT_ONCE = "Jobs: {Type: AWS::SQS::Queue, Properties: {VisibilityTimeout: 1}}"


@needs_node
def test_an_event_for_nodejs_needs_real_time(mixed: Project) -> None:
    mixed.edit("template.yaml", "Jobs: {Type: AWS::SQS::Queue}", JOBS_AT_ONCE)
    mixed.send("Jobs")
    mixed.send("Orders")
    assert "IN_FLIGHT 1 -> WAITING_RETRY 1 s -> IN_FLIGHT 2 -> COMMITTED" in mixed.run("--expect", "committed=2").stdout
    why = "its runtime is nodejs22.x, and --skip-time runs only functions in Python; leave out --skip-time"
    result = mixed.run("--skip-time", "--expect", "committed=1,ready=1")
    assert f"Jobs is served, but Script is not run here: {why}. 1 record of the event stays in it\n" in result.stderr
    mixed.records = mixed.records[:1]
    assert mixed.run("--skip-time", exits=2).stderr == f"tarry: Script cannot run here: {why}\n"


def test_the_queue_of_a_function_that_cannot_run_here_is_served(mixed: Project) -> None:
    notes: list[str] = []
    make_plan(RunSettings(mixed.folder / "template.yaml"), notes.append)
    assert notes == [BILLER]
    notes.clear()
    mixed.edit("template.yaml", "python3.13", "ruby3.4")
    mixed.edit("template.yaml", "nodejs22.x", "provided.al2023")
    plan = make_plan(RunSettings(mixed.folder / "template.yaml"), notes.append)
    assert (plan.all_mappings, len(notes)) == ([], 3)
    mixed.send("Bills")
    why = "Biller cannot run here: its runtime is java21; tarry runs Python and Node.js"
    assert mixed.run(exits=2).stderr == f"tarry: {why}\n"


WITH_SDK = "const { client } = require('@aws-sdk/client-sqs'); exports.handler = async () => console.log(client);"
SDK = "node_modules/@aws-sdk/client-sqs"
NOT_INSTALLED = (
    "@aws-sdk/client-sqs is not installed; on Lambda, nodejs22.x has it, but this machine has not. "
    "To install it: cd script && npm install --save-dev @aws-sdk/client-sqs"
)


@needs_node
def test_a_function_in_nodejs_without_its_packages_does_not_stop_the_others(mixed: Project) -> None:
    mixed.write("script/index.js", WITH_SDK)
    mixed.write("script/package.json", "{}")
    with LocalProcess(mixed.folder, "--watch") as local:
        local.wait(f"^Jobs is served, but Script is not run here: {NOT_INSTALLED}$")
        local.wait(r"^SQS is running at \S+\. Waiting for messages in Orders\.$")
        local.send("Orders", "{}")
        local.wait("^Plain: handled$")
        local.send("Jobs", "{}")
        assert local.depth("Jobs") == 1
        mixed.write(f"script/{SDK}/index.js", "exports.client = 'the SDK';")
        mixed.write("script/package.json", '{"devDependencies": {"@aws-sdk/client-sqs": "3"}}')
        local.wait("^Script can be imported now, and runs.$")
        local.wait("^Script: INFO the SDK$")
    shutil.rmtree(mixed.folder / "script/node_modules")
    mixed.send("Jobs")
    last = mixed.refusal()  # in this process, whose directory is another one
    assert last.startswith("tarry: Script: its handler index.handler cannot be imported from ")
    assert "@aws-sdk/client-sqs is not installed; on Lambda" in last
    assert "script && npm install" in last


@pytest.mark.parametrize("options", [[], ["--skip-time"]], ids=["real", "virtual"])
def test_records_for_a_function_that_cannot_run_here_stay_in_its_queue_and_the_others_run(
    mixed: Project, options: list[str]
) -> None:
    foreign = "arn:aws:sqs:us-east-1:111122223333:shared-bills"
    mixed.edit("template.yaml", "Queue: !GetAtt Bills.Arn", f"Queue: '{foreign}'")
    mixed.edit("template.yaml", "CodeUri: script", "CodeUri: not-there")
    for queue in ("shared-bills", "Orders", "Jobs", "shared-bills"):
        mixed.send(queue)
    result = mixed.run("--expect", "committed=1,ready=3", *options)
    script, biller = (line for line in result.stderr.splitlines() if "is not run here" in line)
    assert script.startswith("Jobs is served, but Script is not run here: ")
    assert script.endswith(". 1 record of the event stays in it")
    why = "its runtime is java21; tarry runs Python and Node.js"
    assert biller == f"shared-bills is served, but Biller is not run here: {why}. 2 records of the event stay in it"
    assert ": 3 ready, 1 committed; none lost." in result.stdout
    assert result.stdout.count(" shared-bills  READY  (no function here consumes it)") == 2


def test_queues_only_serves_the_queues_and_runs_no_function(mixed: Project) -> None:
    mixed.write("plain/app.py", "raise RuntimeError('imported')")
    with LocalProcess(mixed.folder, "--queues-only") as local:
        local.wait(r"^SQS is running at \S+\. No function runs\.$")
        local.send("Bills", "{}")
        local.send("Orders", "{}")
        assert [local.depth(queue) for queue in ("Bills", "Orders", "Jobs")] == [1, 1, 0]
        assert "not run" not in local.text
    assert "--queues-only runs no function" in mixed.run("--queues-only", exits=2).stderr
