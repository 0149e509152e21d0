"""Probe each fact of docs/platform.md, and write the results into tests/facts/results.md.

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

import tests.facts.probes  # noqa: F401 registers the probes
from tests.facts.platforms.aws import AwsPlatform, Stack
from tests.facts.registry import (
    MOTO,
    NOT_PROBED,
    PROBES,
    SIMULATOR,
    Probe,
    ProbeResult,
    Target,
    aws,
    run_probe,
    sort_key,
)
from tests.facts.table import Results, with_table

PAGE = Path(__file__).with_name("results.md")
DEPLOY = (
    "sam deploy --template-file tests/facts/template.yaml --stack-name {} --capabilities CAPABILITY_IAM --resolve-s3"
)
MINUTES = {"seconds": 0.5, "minutes": 3, "hours": 120}
"""The approximate duration of a probe at AWS."""
COSTS = """\
AWS, stack {stack} in {region}: {count} probes, one after the other, about {time}.
They create and delete queues named {prefix}* and event source mappings, and make short invocations. At list prices that
costs less than {dollars} USD; the stack costs nothing while it is idle.{loop}"""
LOOP = """
Fact 15b makes a recursive loop for Lambda to stop, of which AWS notifies the account's contacts."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    probes = _probes(options.only)
    if not probes:
        print(f"No probe for {options.only}.", file=sys.stderr)
        return 2
    work = [(SIMULATOR, probes), (MOTO, probes)]
    if options.stack is None:
        print(f"AWS is not probed. To include it: {DEPLOY.format('NAME')}, then make aws-facts STACK=NAME")
        return _run(work)
    for_aws = [probe for probe in probes if options.slow or probe.cost != "hours"]
    print(_costs(options.stack, [probe for probe in for_aws if probe.needs <= AwsPlatform.has]))
    if not options.yes:
        print("No probe was run. To run them: make aws-facts STACK=... YES=1, or --yes.")
        return 2
    try:
        stack = Stack.find(options.stack)
        stack.sweep()
    except (BotoCoreError, ClientError, KeyError) as error:
        print(f"The stack {options.stack} cannot be used: {error!r}", file=sys.stderr)
        print(f"To create it: {DEPLOY.format(options.stack)}", file=sys.stderr)
        return 2
    return _run([*work, (aws(stack), for_aws)])


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.facts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stack", help="the stack of tests/facts/template.yaml; without it AWS is not probed")
    parser.add_argument("--yes", action="store_true", help="run the probes at AWS; without it only show their costs")
    parser.add_argument("--slow", action="store_true", help="at AWS, also run the probes that take hours")
    parser.add_argument("--only", metavar="FACT,...", help="probe only these facts")
    return parser.parse_args(arguments)


def _probes(only: str | None) -> list[Probe]:
    wanted = only.split(",") if only else {probe.fact for probe in PROBES}
    return sorted((probe for probe in PROBES if probe.fact in wanted), key=lambda probe: sort_key(probe.fact))


def _costs(stack: str, probes: list[Probe]) -> str:
    minutes = sum(MINUTES[probe.cost] for probe in probes)
    return COSTS.format(
        stack=stack,
        region=boto3.session.Session().region_name or "an unknown region: set one",
        count=len(probes),
        time=f"{minutes / 60:.0f} hours" if minutes >= 180 else f"{minutes:.0f} minutes",
        prefix=Stack.prefix_of(stack),
        dollars="0.20" if any(probe.cost == "hours" for probe in probes) else "0.10",
        loop=LOOP if any("loop detection" in probe.needs for probe in probes) else "",
    )


def _run(work: list[tuple[Target, list[Probe]]]) -> int:
    """Run the probes and write the page, even after an exception; return 1 if AWS or the simulator differs."""
    absent = [probe for probe in PROBES if not probe.needs <= AwsPlatform.has]
    results: Results = {(probe.fact, probe.claim): {"AWS": ProbeResult("absent")} for probe in absent}
    wrong = 0
    try:
        for target, probes in work:
            print(f"\n{target.name}")
            for probe in probes:
                result = run_probe(probe, target, datetime.now(UTC).date())
                results.setdefault((probe.fact, probe.claim), {})[target.name] = result
                wrong += result.kind == "differs" and target is not MOTO
                if result.kind != "absent":
                    print(f"{probe.fact:>5}  {result.kind:<8} {probe.claim}", flush=True)
                if result.detail:
                    print(f"{'':16}{result.detail}", flush=True)
    finally:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(with_table(page, results, PROBES, NOT_PROBED), "utf-8")
        print(f"\nWritten: {PAGE}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
