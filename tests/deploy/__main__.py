"""The deploy check: `make deploy-check`."""

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy import deletion, update, versions
from tests.deploy.aws import REGION
from tests.deploy.environment import ROOT, interpreter
from tests.deploy.ministack import MiniStack, running
from tests.deploy.project import copy_project, sam
from tests.deploy.receiver import Receiver
from tests.deploy.samples import Samples, expect
from tests.deploy.stack import Stack

NAME = "shop"
LOG = ROOT / "build" / "deploy-check.log"
"""A copy of MiniStack's log, kept if something failed."""


class Stopped(Exception):
    """A step failed that all later steps need."""


@dataclass(frozen=True)
class Result:
    step: str
    seconds: float
    error: str = ""


class Steps:
    """The steps of the check, each with a line of progress."""

    def __init__(self) -> None:
        self.results: list[Result] = []

    def take(self, step: str, action: Callable[[], object], *, needed: bool = False) -> None:
        """Take a step; if it fails and is `needed`, raise Stopped."""
        print(f"{step} ...", flush=True)
        started_at = time.monotonic()
        error = ""
        try:
            note = action()
        except Exception as raised:  # noqa: BLE001 it is a result
            error = str(raised) if isinstance(raised, AssertionError) else traceback.format_exc()
            note = f"FAILED: {error}"
        if isinstance(note, str) and note:
            print("    " + note.rstrip().replace("\n", "\n    "), flush=True)
        self.results.append(Result(step, time.monotonic() - started_at, error))
        if error and needed:
            raise Stopped

    def table(self) -> Iterator[str]:
        width = max(len(result.step) for result in self.results)
        for result in self.results:
            yield f"{result.step:{width}}  {'FAILED' if result.error else 'ok':6}  {result.seconds:6.1f} s"


def main() -> int:
    """Run the check; return 0 if everything is as it should be, 1 if a step failed, 2 if it cannot run here."""
    argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__).parse_args()
    if sys.platform != "linux":
        print("The deploy check needs Linux: functions and layers are built for it.", file=sys.stderr)
        return 2
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="deploy-check-") as folder:
        try:
            steps.take("Install MiniStack", lambda: f"Python: {interpreter()}", needed=True)
            with (
                Receiver() as receiver,
                running(Path(folder) / "ministack") as ministack,
                log_of_a_failure(ministack, steps),
            ):
                take_all(steps, ministack, receiver, Path(folder))
        except Stopped:
            pass
    print()
    print("\n".join(steps.table()))
    failed = [result.step for result in steps.results if result.error]
    outcome = f"{len(failed)} of {len(steps.results)} steps failed" if failed else "All steps passed"
    print(f"\n{outcome} in {sum(result.seconds for result in steps.results):.0f} s")
    if failed and LOG.exists():
        print(f"The log of MiniStack: {LOG.relative_to(ROOT)}")
    return int(bool(failed))


def take_all(steps: Steps, ministack: MiniStack, receiver: Receiver, folder: Path) -> None:
    stack, project = Stack(ministack.url, NAME, {"AllowPrivateAddresses": "true"}), folder / "project"
    samples = Samples(stack, ministack.recorder, receiver)

    def build() -> None:
        sam(ministack.url, "build", cwd=copy_project(project))

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

    def two_versions() -> str:
        versions.build(folder / "versions")
        both = Stack(ministack.url, "versions")
        both.create(folder / "versions")
        return versions.check(both)

    def delete() -> None:
        sam(ministack.url, "delete", "--stack-name", NAME, "--no-prompts", "--region", REGION, cwd=project)

    steps.take("Build for this machine: sam build", build, needed=True)
    steps.take(f"Deploy the stack {NAME}: sam deploy", deploy, needed=True)
    steps.take("Send samples: each queue, each outcome", send_samples)
    checks = (samples.check_orders, samples.check_ledger, samples.check_digest, samples.check_webhooks)
    for check in (*checks, samples.check_rights):
        name = check.__name__.removeprefix("check_")
        steps.take(f"Check {name}", lambda check=check: check() or check.__doc__)  # type: ignore[misc]
    steps.take("Check TLS", lambda: samples.check_tls(ministack.url_without_tls))
    steps.take("Deploy changed code under load", lambda: update.check(stack, ministack.recorder, project))
    steps.take("Retry a dead letter: tarry failed retry", lambda: update.check_retried_dead_letter(stack))
    steps.take("Deploy a second stack beside it", second_stack)
    steps.take(f"Run tarry {versions.OLDER} beside this version", two_versions)
    steps.take("Delete the stack: sam delete", lambda: deletion.check(stack, delete))


@contextmanager
def log_of_a_failure(ministack: MiniStack, steps: Steps) -> Iterator[None]:
    LOG.unlink(missing_ok=True)
    try:
        yield
    finally:
        if any(result.error for result in steps.results):
            shutil.copy(ministack.log, LOG)


if __name__ == "__main__":
    sys.exit(main())
