"""SnapStart: Lambda takes a snapshot after the imports, and restores many environments from it.

A fork does the same with the memory of a process: each child continues with what the parent had at that moment.
"""

import json
import subprocess
import sys
from pathlib import Path

FUNCTION = """
import json, os, sys
from tarry import Batch, Exponential, Message, RetryInPlace, SendAgain, batch_consumer, consumer
from tarry.world import World, current


class OwnBackoff:
    def delay(self, attempt, rng=None):
        return (rng.random() if rng else 0) + attempt


@consumer(max_attempts=5, backoff=Exponential(30, 3, maximum=900, jitter="full"))
def one(message: Message) -> None: ...


@consumer(on_failure=[RetryInPlace(), SendAgain("later", delay=Exponential(60, 2, maximum=600))], backoff=OwnBackoff())
def own(message: Message) -> None: ...


@batch_consumer
async def many(batch: Batch) -> None: ...


world, fresh = current(), World()
at_snapshot = {name: value for name, value in vars(world).items() if name not in ("_lock", "clock")}
assert at_snapshot == {name: vars(fresh)[name] for name in at_snapshot}, at_snapshot
assert not {name for name in vars(world.clock)}, "the clock keeps a reading"
assert "boto3" not in sys.modules
for _ in range(3):
    if os.fork() == 0:
        restored = {
            "delays": [world.random.random() for _ in range(3)],
            "id": world.new_id(),
            "jitter": Exponential(30, 3, maximum=900, jitter="full").delay(2),
        }
        os.write(1, json.dumps(restored).encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


def test_environments_restored_from_one_snapshot_share_no_random_source_client_or_clock_reading(tmp_path: Path) -> None:
    (tmp_path / "function.py").write_text(FUNCTION)
    run = subprocess.run([sys.executable, "function.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    restored = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(restored) == 3
    for name in ("delays", "id", "jitter"):
        assert len({str(each[name]) for each in restored}) == 3, f"{name}: environments got the same values"
