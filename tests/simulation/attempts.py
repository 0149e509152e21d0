"""The campaign with an attempt store that fails: the scenarios and checkers of `tests.simulation.campaign`, and more.

python -m tests.simulation.attempts --seeds 1000
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

from tarry.tools.testing.checkers import check
from tarry.tools.testing.deliveries import FAILED, MessageCopy, ObservedDelivery
from tarry.tools.testing.recorded_history import RecordedHistory
from tests.simulation.campaign import SeedResult, be_quiet, play
from tests.simulation.failing_tables import FailingStore, counted_runs
from tests.simulation.scenario import draw
from tests.simulation.workers import judge_each

STAYS = ("waiting_retry", "unhandled")
"""Log events of a failed message that stays in its queue."""


def judge(seed: int) -> SeedResult:
    """Run a seed with a store; return the defects."""
    scenario, store = draw(seed), FailingStore(seed)
    scenario = replace(scenario, settings={**scenario.settings, "attempts": store})
    try:
        report = play(scenario)
        history = RecordedHistory(report.events, settled=report.settled)
        found = [str(violation) for violation in check(history)]
        found += [] if report.settled else ["the messages did not settle"]
        found += [text for copy in history.copies.values() for text in miscounted(copy, store)]
    except Exception as error:  # noqa: BLE001 any error is a result of the seed
        found = [f"{type(error).__name__}: {error}"]
    return SeedResult(seed, f"seed {seed} ({store.mood}): " + "\n".join(found[:3]) if found else "")


def miscounted(copy: MessageCopy, store: FailingStore) -> Iterator[str]:
    """Yield what is wrong with the counted runs of a message in one queue."""
    key = f"{copy.sent_to}#{copy.delivery_id}"
    counted = counted_runs(store.records.get(key, {}))
    carried = int((copy.record or {}).get("carried") or 0)
    failed = 0
    for delivery in copy.deliveries:
        for run in delivery.runs:
            runs = run.attempt(copy.delivery_id) - carried - 1
            if not run.messages[copy.delivery_id].is_exact:
                continue
            read = {sum(each < delivery.count for each in found) for found in store.returned.get(key, ())}
            if delivery.count > 1 and runs not in read:
                yield f"{key}: attempt {runs + 1} of {sorted(read)}"
            if store.mood == "well" and runs < failed:
                yield f"{key}: attempt {runs + 1} at delivery {delivery.count}, after {failed} failures"
            most = sum(may_be_counted(each) for each in copy.deliveries if each.count < delivery.count)
            if store.mood == "well" and runs > most:
                yield f"{key}: attempt {runs + 1} at delivery {delivery.count}, after {most} runs that did not succeed"
        stays = any(event.fields["event"] in STAYS and "sent_to" not in event.fields for event in delivery.log_lines)
        answered = None if delivery.invocation is None else delivery.invocation.answered
        following = delivery.following
        is_over = answered is not None and following is not None and answered.at <= following.at  # its run is recorded
        failed += stays and is_over and delivery.ended_well and delivery.verdict in FAILED
        if delivery.count in counted and delivery.verdict in ("ack", "discard", "defer"):
            own = any(run.terms(copy.delivery_id).has_own_steps for run in delivery.runs)
            if not (own or copy.is_fifo):
                yield f"{key}: delivery {delivery.count} is counted, though it ended with {delivery.verdict}"


def may_be_counted(delivery: ObservedDelivery) -> bool:
    """Whether a delivery may be an attempt: its message failed, or its process died while or after it ran."""
    return bool(delivery.runs) and (delivery.verdict in (*FAILED, "left", None) or not delivery.ended_well)


def judge_quietly(seed: int) -> SeedResult:
    be_quiet()
    return judge(seed)


def lost(seed: int) -> SeedResult:
    return SeedResult(seed, f"seed {seed}: its process crashed or hung")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--seed", type=int, help="run only this seed")
    options = parser.parse_args()
    if options.seed is not None:
        print(judge_quietly(options.seed).text or "no defect")
        return 0
    bad = [result.text for result in judge_each(range(options.seeds), judge_quietly, lost, 2) if result.text]
    print(*bad, f"{options.seeds} seeds, {len(bad)} bad", sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
