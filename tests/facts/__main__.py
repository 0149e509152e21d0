"""Show each fact of docs/platform.md, and write the page's table with what was seen.

python -m tests.facts                       the simulator and moto: a few seconds
python -m tests.facts --stack NAME --yes    real AWS too
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

import tests.facts.probes  # noqa: F401 registers them
from tests.facts.places import MOTO, SIMULATOR, Place, aws
from tests.facts.registry import NOT_PROBED, PROBES, Probe, place_of
from tests.facts.table import Results, with_table
from tests.facts.verdict import Verdict, judge
from tests.facts.worlds.aws import AwsWorld, Stack

PAGE = Path(__file__).parents[2] / "docs" / "platform.md"
DEPLOY = (
    "sam deploy --template-file tests/facts/template.yaml --stack-name {} --capabilities CAPABILITY_IAM --resolve-s3"
)
MINUTES = {"seconds": 0.5, "minutes": 3, "hours": 120}
"""About how long a probe takes at AWS."""
COSTS = """\
AWS, stack {stack} in {region}: {count} probes, one after the other, about {time}.
They make queues named {prefix}*, event source mappings and short invocations, and delete what they made. At list prices
that is less than {dollars} USD; the stack costs nothing while it is idle.{loop}"""
LOOP = """
Fact 15b makes a loop for Lambda to stop: AWS then tells the account's contacts that it has stopped one."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    probes = _probes(options.only)
    if not probes:
        print(f"There is no probe of {options.only}.", file=sys.stderr)
        return 2
    work = [(SIMULATOR, probes), (MOTO, probes)]
    if options.stack is None:
        print(f"AWS is left out. To include it: {DEPLOY.format('NAME')}, then make aws-facts STACK=NAME")
        return _run(work)
    for_aws = [probe for probe in probes if options.slow or probe.cost != "hours"]
    print(_costs(options.stack, [probe for probe in for_aws if probe.needs <= AwsWorld.has]))
    if not options.yes:
        print("Nothing was done yet. To begin: make aws-facts STACK=... YES=1, or --yes.")
        return 2
    try:
        stack = Stack.find(options.stack)
        stack.sweep()
    except (BotoCoreError, ClientError, KeyError) as error:
        print(f"The stack {options.stack} cannot be used: {error!r}", file=sys.stderr)
        print(f"To make it: {DEPLOY.format(options.stack)}", file=sys.stderr)
        return 2
    return _run([*work, (aws(stack), for_aws)])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.facts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stack", help="the stack of tests/facts/template.yaml; without it AWS is left out")
    parser.add_argument("--yes", action="store_true", help="begin at AWS; without it only the costs are said")
    parser.add_argument("--slow", action="store_true", help="at AWS, the probes that take hours too")
    parser.add_argument("--only", metavar="FACT,...", help="these facts alone")
    return parser.parse_args(arguments)


def _probes(only: str | None) -> list[Probe]:
    wanted = only.split(",") if only else {probe.fact for probe in PROBES}
    return sorted((probe for probe in PROBES if probe.fact in wanted), key=lambda probe: place_of(probe.fact))


def _costs(stack: str, probes: list[Probe]) -> str:
    minutes = sum(MINUTES[probe.cost] for probe in probes)
    return COSTS.format(
        stack=stack,
        region=boto3.session.Session().region_name or "no region: set one",
        count=len(probes),
        time=f"{minutes / 60:.0f} hours" if minutes >= 180 else f"{minutes:.0f} minutes",
        prefix=Stack.prefix_of(stack),
        dollars="0.20" if any(probe.cost == "hours" for probe in probes) else "0.10",
        loop=LOOP if any("loop detection" in probe.needs for probe in probes) else "",
    )


def _run(work: list[tuple[Place, list[Probe]]]) -> int:
    """Runs the probes and writes the page, also if something ends it early; 1 if AWS or the simulator differs."""
    results: Results = {
        (probe.fact, probe.claim): {"AWS": Verdict("absent")} for probe in PROBES if not probe.needs <= AwsWorld.has
    }
    wrong = 0
    try:
        for place, probes in work:
            print(f"\n{place.name}")
            for probe in probes:
                verdict = judge(probe, place, datetime.now(UTC).date())
                results.setdefault((probe.fact, probe.claim), {})[place.name] = verdict
                wrong += verdict.kind == "differs" and place is not MOTO
                if verdict.kind != "absent":
                    print(f"{probe.fact:>5}  {verdict.kind:<8} {probe.claim}", flush=True)
                if verdict.detail:
                    print(f"{'':16}{verdict.detail}", flush=True)
    finally:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(with_table(page, results, PROBES, NOT_PROBED), "utf-8")
        print(f"\nWritten: {PAGE}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
