"""Mutants: how many small errors in the package no test notices, and which: `make mutants`.

python -m tests.mutants --seed 7 --count 150 --part runtime
python -m tests.mutants --room settle

For each mutant of a sample, the tests that run its line are run in a private copy of the repository, first those that
are likely to notice it.
"""

import argparse
import queue
import random
import re
import threading
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from itertools import accumulate
from pathlib import Path

from tarry.tools.common.strip import NOT_DEPLOYED
from tests.mutants.operators import Mutant, mutants
from tests.mutants.private import PACKAGE, private_copy, run_tests
from tests.mutants.recorder import Recording, recording
from tests.pages import ROOT

COUNT = 100
SECONDS = 30.0
"""The tests of a mutant take at most this long, as recorded; a busy machine records longer times."""
NEAR_FILES, NEAR_SECONDS = 4, 4.0
STARTUP_SECONDS, PATIENCE = 120.0, 5
"""A run that takes longer than the start and so many times the recorded seconds hangs."""
JOBS = 2
EQUIVALENTS = Path(__file__).with_name("equivalents.toml")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    kind: str
    """``caught``, ``survived`` or ``equivalent``."""
    reason: str


@cache
def text_of(file: str) -> str:
    return (ROOT / PACKAGE / file).read_text()


@cache
def all_files() -> tuple[str, ...]:
    return tuple(str(path.relative_to(ROOT / PACKAGE)) for path in sorted((ROOT / PACKAGE).rglob("*.py")))


def sample(found: Iterable[Mutant], seed: str, count: int) -> list[Mutant]:
    """Return mutants of all rooms, of each as many as its share of all mutants."""
    rooms: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in found:
        rooms[mutant.room].append(mutant)
    total = sum(map(len, rooms.values()))
    shares = {room: count * len(of_room) / total for room, of_room in rooms.items()}
    largest_rests = sorted(shares, key=lambda room: (int(shares[room]) - shares[room], room))
    one_more = largest_rests[: min(count, total) - sum(map(int, shares.values()))] if count < total else ()
    chosen: list[Mutant] = []
    for room, of_room in sorted(rooms.items()):
        size = min(len(of_room), int(shares[room]) + (room in one_more))
        chosen += random.Random(f"{seed} {room}").sample(of_room, size)
    return chosen


def change(mutant: Mutant) -> tuple[str, str]:
    """Return the lines of a mutant before and after the edit, each as one text."""
    before = text_of(mutant.file)
    both = before.splitlines(), mutant.apply(before).splitlines()
    first, second = (" ".join(" ".join(lines[mutant.line - 1 : mutant.lines[-1]]).split()) for lines in both)
    return first, second


def diff(mutant: Mutant) -> str:
    before, name = text_of(mutant.file), f"{PACKAGE / mutant.file}"
    after = mutant.apply(before).splitlines(keepends=True)
    return "".join(unified_diff(before.splitlines(keepends=True), after, name, f"{name}:{mutant.line}"))


def equivalents() -> dict[tuple[str, str, str], str]:
    """Return the reasons of the mutants that no test can catch, by file, line before and line after."""
    listed = tomllib.loads(EQUIVALENTS.read_text()).get("equivalent", [])
    return {(each["file"], each["before"], each["after"]): each["reason"] for each in listed}


def tests_of(mutant: Mutant, recorded: Recording) -> list[str]:
    """Return the tests that run a mutant, fastest first, as many as may run.

    A value that the import of a module or the definition of a class assigns is run where its name stands.
    """
    found: set[str] = set()
    for name in mutant.names:
        word = re.compile(rf"\b{name}\b")
        for file in all_files():
            lines = [line for line, text in enumerate(text_of(file).splitlines(), 1) if word.search(text)]
            found |= recorded.tests(file, lines) if lines else set()
    found = found or recorded.tests(mutant.file, mutant.lines) or recorded.tests(mutant.file, mutant.around)
    fastest = sorted(found, key=lambda test: (recorded.seconds[test], test))
    until = accumulate(recorded.seconds[test] for test in fastest)
    return [test for test, seconds in zip(fastest, until, strict=True) if seconds <= SECONDS] or fastest[:1]


def near_first(tests: Sequence[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Part tests into those of a few files, which are imported quickly and catch most mutants, and the rest."""
    near: dict[str, float] = {}
    files: set[str] = set()
    for test in sorted(tests, key=lambda test: not test.startswith("tests/unit/")):
        of_files = files | {test.partition("::")[0]}
        if len(of_files) <= NEAR_FILES and sum(near.values()) + seconds[test] <= NEAR_SECONDS:
            files, near[test] = of_files, seconds[test]
    return [part for part in (list(near), [test for test in tests if test not in near]) if part]


def judge(mutant: Mutant, root: Path, recorded: Recording) -> Result:
    """Run the tests of a mutant in a private copy."""
    if (reason := equivalents().get((mutant.file, *change(mutant)))) is not None:
        return Result(mutant, "equivalent", reason)
    if not (tests := tests_of(mutant, recorded)):
        return Result(mutant, "survived", "no test runs it")
    path = root / PACKAGE / mutant.file
    before = path.read_text()
    try:
        _write(path, mutant.apply(before))
        for part in near_first(tests, recorded.seconds):
            limit = STARTUP_SECONDS + PATIENCE * sum(recorded.seconds[test] for test in part)
            options = ["-x", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-seed=0"]
            if (output := run_tests(root, [*options, *part], limit)) is not None:
                break
    finally:
        _write(path, before)
    if output is None:
        return Result(mutant, "survived", f"{len(tests)} tests pass")
    failed = _FAILED.search(output)
    return Result(mutant, "caught", failed[1] if failed else output.strip().rpartition("\n")[2])


def _write(module: Path, text: str) -> None:
    """Write a module, and remove its compiled files: Python would use one of the same size and second."""
    module.write_text(text)
    for compiled in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
        compiled.unlink()


def judge_all(chosen: Sequence[Mutant], recorded: Recording) -> list[Result]:
    """Judge the mutants and print each result; Ctrl-C ends it early."""
    results: list[Result] = []
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)
    printing = threading.Lock()

    def work() -> None:
        with private_copy() as root, suppress(queue.Empty):
            while True:
                result = judge(mutant := waiting.get_nowait(), root, recorded)
                with printing:
                    results.append(result)
                    place = f"{mutant.file}:{mutant.line}"
                    print(f"{len(results)}/{len(chosen)} {result.kind:<8} {place}: {result.reason}", flush=True)
                    if result.kind == "survived":
                        print(diff(mutant), flush=True)

    workers = [threading.Thread(target=work) for _ in range(min(JOBS, len(chosen)))]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        print("Stops after the mutants whose tests are running", flush=True)
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        for worker in workers:
            worker.join()
    return results


def summary(results: Iterable[Result]) -> str:
    """Return a table of the rooms."""
    rooms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for room in (result.mutant.room, "all"):
            rooms[room][result.kind] += 1
    lines = [f"{'room':<14}{'mutants':>8}{'caught':>8}{'survived':>10}{'equivalent':>12}{'share':>8}"]
    for room, kinds in sorted(rooms.items(), key=lambda each: (each[0] == "all", each[0])):
        share = kinds["survived"] / kinds.total()
        counts = f"{kinds.total():>8}{kinds['caught']:>8}{kinds['survived']:>10}{kinds['equivalent']:>12}"
        lines.append(f"{room:<14}{counts}{share:>8.1%}")
    return "\n".join(lines)


def is_in(mutant: Mutant, part: str | None, room: str | None) -> bool:
    is_tool = mutant.file.partition("/")[0] in NOT_DEPLOYED
    of_part = {"runtime": not is_tool, "tools": is_tool, None: True}[part]
    return of_part and (room is None or mutant.room == room or f"{mutant.file}/".startswith(f"{room}/"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", default=str(random.randrange(10_000)))
    parser.add_argument("--count", type=int, help=f"{COUNT} by default, and all mutants of a room")
    parser.add_argument("--part", choices=["runtime", "tools"])
    parser.add_argument("--room", help="a folder or file of the package, or tarry for the modules outside a folder")
    options = parser.parse_args()
    found = [mutant for file in all_files() for mutant in mutants(file, text_of(file))]
    found = [mutant for mutant in found if is_in(mutant, options.part, options.room)]
    count = options.count or (len(found) if options.room else COUNT)
    chosen = sample(found, options.seed, count)
    print(f"{len(chosen)} of {len(found)} mutants, seed {options.seed}", flush=True)
    print(summary(judge_all(chosen, recording())), flush=True)


if __name__ == "__main__":
    main()
