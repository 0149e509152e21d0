"""The deploy check: `make deploy-check`."""

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tarry.guard.decision import GuardLimits
from tarry.guard.operations import Clients, Guarded, guard
from tarry.observe.metrics import NAMESPACE
from tests.deploy import update, versions
from tests.deploy.aws import REGION
from tests.deploy.checks import check_deletion, check_drift
from tests.deploy.environment import ROOT, copy_project, interpreter, sam
from tests.deploy.ministack import MiniStack, running
from tests.deploy.samples import Samples, expect, receiving
from tests.deploy.stack import Stack
from tests.receiver import Receiver

NAME = "shop"
LOG = ROOT / "build" / "deploy-check.log"
"""A copy of MiniStack's log, kept if something failed."""


BUILD, DEPLOY, SAMPLES = "Build for this machine: sam build", "Deploy the stack: sam deploy", "Send samples"
CHECKED = "Check the deployed stack: tarry check --stack"
PARAMETERS = {"AllowPrivateAddresses": "true", "OutageGuard": "true"}
GUARD_ALARM = "  GuardAlarm:\n    Type: AWS::CloudWatch::Alarm\n    Condition: HasGuard\n"
"""Is left out: MiniStack has no alarms on metric math."""
LOADED = "Deploy changed code under load"


@dataclass(frozen=True)
class Result:
    step: str
    outcome: Literal["ok", "FAILED", "not run"]
    seconds: float = 0.0


class Steps:
    """The steps of the check, each with a line about what it showed."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    def take(self, step: str, action: Callable[[], str], *, needs: str = "") -> bool:
        """Take a step, unless the step that it needs has not succeeded; return whether it succeeded.

        Args:
            step: The name of the step.
            action: It returns the line about what the step showed, and raises an exception if the step fails.
            needs: The name of an earlier step.
        """
        print(f"{step} ...", flush=True)
        started_at = time.monotonic()
        outcome: Literal["ok", "FAILED", "not run"] = "ok"
        if needs and not self.succeeded(needs):
            outcome, shown = "not run", f"not run: needs {needs}"
        else:
            try:
                shown = action()
            except Exception as raised:  # noqa: BLE001 it is a result
                outcome = "FAILED"
                shown = f"FAILED: {raised if isinstance(raised, AssertionError) else traceback.format_exc()}"
        print("    " + shown.rstrip().replace("\n", "\n    "), flush=True)
        self.results.append(Result(step, outcome, time.monotonic() - started_at))
        return outcome == "ok"

    def succeeded(self, step: str) -> bool:
        return any(result.step == step and result.outcome == "ok" for result in self.results)

    def failed(self) -> bool:
        return any(result.outcome == "FAILED" for result in self.results)

    def table(self) -> Iterator[str]:
        width = max(len(result.step) for result in self.results)
        for result in self.results:
            yield f"{result.step:{width}}  {result.outcome:7}  {result.seconds:6.1f} s"

    def summary(self) -> str:
        """Return a sentence with the numbers of steps, and the time that they took."""
        counts = Counter(result.outcome for result in self.results)
        seconds = f"in {sum(result.seconds for result in self.results):.0f} s"
        if not self.failed():
            return f"All steps passed {seconds}"
        skipped = f", {counts['not run']} not run" if counts["not run"] else ""
        return f"{counts['FAILED']} of {len(self.results)} steps failed{skipped} {seconds}"


def main() -> int:
    """Run the check; return 0 if everything is as it should be, 1 if a step failed, 2 if it cannot run here."""
    argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__).parse_args()
    if platform.system() != "Linux":
        print("The deploy check needs Linux: functions and layers are built for it.", file=sys.stderr)
        return 2
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="deploy-check-") as folder:
        if steps.take("Install MiniStack", lambda: f"Python: {interpreter()}"):
            with (
                receiving() as receiver,
                running(Path(folder) / "ministack") as ministack,
                log_of_a_failure(ministack, steps),
            ):
                take_all(steps, ministack, receiver, Path(folder))
    print("", *steps.table(), "", steps.summary(), sep="\n")
    if steps.failed() and LOG.exists():
        print(f"The log of MiniStack: {LOG.relative_to(ROOT)}")
    return int(steps.failed())


def take_all(steps: Steps, ministack: MiniStack, receiver: Receiver, folder: Path) -> None:
    stack, project = Stack(ministack.url, NAME, PARAMETERS), folder / "project"
    samples = Samples(stack, ministack.recorder, receiver)

    def build() -> str:
        copied = copy_project(project) / "template.yaml"
        text = copied.read_text()
        copied.write_text(text.replace(GUARD_ALARM, GUARD_ALARM.replace("HasGuard", "HasQueueKey")))
        sam(ministack.url, "build", cwd=project)
        built = sorted(each.name for each in (project / ".aws-sam" / "build").iterdir() if each.is_dir())
        return f"built {', '.join(built)}"

    def deploy() -> str:
        stack.deploy(project)
        return f"{stack.status}: {', '.join(sorted(stack.resources('AWS::Lambda::Function')))}"

    def send_samples() -> str:
        samples.send()
        samples.wait("ledger")  # its delay is 30 s
        return f"{len(samples.ids)} messages settled"

    def second_stack() -> str:
        second = Stack(ministack.url, "second")
        second.deploy(project)
        names = {url.rpartition("/")[2] for url in second.resources("AWS::SQS::Queue").values()}
        expect(
            "queues that both stacks have", names & {url.rpartition("/")[2] for url in stack.outputs.values()}, set()
        )
        return f"{second.status}: {', '.join(sorted(names))}"

    def look() -> str:
        functions = stack.client("lambda")
        name = stack.resources("AWS::Lambda::Function")["GuardFunction"]
        variables = functions.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        guarded = [Guarded(**each) for each in json.loads(variables["GUARDED"])]
        clients = Clients(functions, stack.client("cloudwatch"), stack.client("sqs"))
        expect("its acts", [*guard(guarded, variables[NAMESPACE], GuardLimits(), clients)], [])
        return f"the guard has looked at {', '.join(each.consumer for each in guarded)}, and left them enabled"

    def two_versions() -> str:
        versions.build(folder / "versions")
        both = Stack(ministack.url, "versions")
        both.create(folder / "versions")
        return versions.check(both)

    def check(check_samples: Callable[[], None]) -> str:
        check_samples()
        return str(check_samples.__doc__)

    def delete() -> None:
        sam(ministack.url, "delete", "--stack-name", NAME, "--no-prompts", "--region", REGION, cwd=project)

    steps.take(BUILD, build)
    steps.take(DEPLOY, deploy, needs=BUILD)
    steps.take(CHECKED, lambda: check_drift(stack, project / "template.yaml"), needs=DEPLOY)
    steps.take(SAMPLES, send_samples, needs=DEPLOY)
    checks = (samples.check_orders, samples.check_ledger, samples.check_digest, samples.check_webhooks)
    for each in (*checks, samples.check_attempts, samples.check_rights):
        steps.take(f"Check {each.__name__.removeprefix('check_')}", partial(check, each), needs=SAMPLES)
    steps.take("Look with the outage guard", look, needs=SAMPLES)
    steps.take("Check TLS", lambda: samples.check_tls(ministack.url_without_tls), needs=DEPLOY)
    steps.take(LOADED, lambda: update.check(stack, ministack.recorder, project), needs=DEPLOY)
    steps.take("Retry a dead letter: tarry failed retry", lambda: update.check_retried_dead_letter(stack), needs=LOADED)
    steps.take("Deploy a second stack beside it", second_stack, needs=DEPLOY)
    steps.take(f"Run tarry {versions.OLDER} beside this version", two_versions)
    steps.take("Delete the stack: sam delete", lambda: check_deletion(stack, delete), needs=DEPLOY)


@contextmanager
def log_of_a_failure(ministack: MiniStack, steps: Steps) -> Iterator[None]:
    LOG.unlink(missing_ok=True)
    try:
        yield
    finally:
        if steps.failed():
            shutil.copy(ministack.log, LOG)


if __name__ == "__main__":
    sys.exit(main())
