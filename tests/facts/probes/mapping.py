"""Facts 13 and 15: how an event source mapping makes batches, and how fast it goes."""

from tests.facts.probes.answers import VISIBILITY_SECONDS, receives
from tests.facts.probes.refusal import refused
from tests.facts.registry import mapping_probe, not_probed, probe
from tests.facts.worlds.world import PATIENCE_SECONDS, TIMEOUT_SECONDS, Need, World, expect

LOOP: tuple[Need, ...] = ("mapping", "loop detection")


@mapping_probe("13", "Above a batch size of 10 a window of 1 s is needed; 10,000 is the most")
def batch_sizes(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    with refused("11 without a window"):
        world.connect(url, BatchSize=11)
    with refused("10,001"):
        world.connect(url, BatchSize=10_001, MaximumBatchingWindowInSeconds=1)
    world.connect(url, BatchSize=10_000, MaximumBatchingWindowInSeconds=1)


@mapping_probe("13", "A window is 0 to 300 s")
def windows(world: World) -> None:
    url = world.queue(VisibilityTimeout=900)
    with refused("301 s"):
        world.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=301)
    world.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=300)


@mapping_probe("13", "FIFO: 10 at most, and no window")
def fifo_batches(world: World) -> None:
    url = world.queue(fifo=True, VisibilityTimeout=60)
    with refused("11"):
        world.connect(url, BatchSize=11)
    with refused("a window"):
        world.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=1)


@mapping_probe("13", "A queue whose visibility timeout is below the function's timeout is refused")
def visibility_below_the_timeout(world: World) -> None:
    url = world.queue(VisibilityTimeout=TIMEOUT_SECONDS - 1)
    with refused("one second less"):
        world.connect(url, BatchSize=1)


@mapping_probe("13", "An event is at most 6 MB: a batch is cut to it")
def six_megabytes(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    for _ in range(8):
        world.send(url, {"filler": "x" * 1_000_000})
    world.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=5)
    world.until(lambda: len(receives(world.invocations(url))) == 8, PATIENCE_SECONDS)
    sizes = [len(each.records) for each in world.invocations(url)]
    expect(sum(sizes), 8, "handled")
    assert max(sizes) <= 6, f"batches of {sizes}"


@mapping_probe("15", "MaximumConcurrency is 2 to 1,000")
def range_of_maximum_concurrency(world: World) -> None:
    url = world.queue(VisibilityTimeout=60)
    for concurrency in (1, 1_001):
        with refused(f"{concurrency:,}"):
            world.connect(url, ScalingConfig={"MaximumConcurrency": concurrency})


@mapping_probe("15", "It limits how many invocations run at once")
def maximum_concurrency(world: World) -> None:
    url = world.queue(VisibilityTimeout=120)
    for number in range(8):
        world.send(url, {"1": {"sleep": 5}, "number": number})
    world.connect(url, BatchSize=1, ScalingConfig={"MaximumConcurrency": 2})
    world.until(lambda: sum(each.ended is not None for each in world.invocations(url)) == 8, 2 * PATIENCE_SECONDS)
    invocations = world.invoked(url, 8)
    at_once = [sum(each.began <= one.began < (each.ended or 0) for each in invocations) for one in invocations]
    assert max(at_once) <= 2, f"{max(at_once)} at once"


@mapping_probe("15", "A throttled batch comes back when its visibility ends, one receive older, without having run")
def throttled(world: World) -> None:
    url, dead = world.with_dead_letters(2, VisibilityTimeout=VISIBILITY_SECONDS)
    message_id = world.send(url, {})
    world.connect(url, throttled=True, BatchSize=1)
    world.until(lambda: bool(world.depth(dead)["ready"]), 4 * PATIENCE_SECONDS)
    letter = world.receive_one(dead)
    expect((letter["MessageId"], world.invocations(url)), (message_id, []), "the letter, and the invocations")


not_probed("15a", "it needs minutes of load, and AWS may change the figures")


@probe("15b", "A function that feeds its own queue is stopped after about 16 hops", cost="minutes", needs=LOOP)
def recursive_loops_are_stopped(world: World) -> None:
    url, dead = world.with_dead_letters(2, VisibilityTimeout=VISIBILITY_SECONDS)
    world.send(url, {"1": {"resend": True}})
    world.connect(url, BatchSize=1)
    world.until(lambda: bool(world.depth(dead)["ready"]), 5 * PATIENCE_SECONDS)
    hops = len(world.invocations(url))
    assert 14 <= hops <= 18, f"{hops} hops"
    world.receive_one(dead)


@mapping_probe("15c", "A message that no filter matches is deleted without an invocation")
def filters_delete(world: World) -> None:
    url = world.queue(VisibilityTimeout=VISIBILITY_SECONDS)
    wanted = world.send(url, {"kind": "wanted"})
    for body in ({"kind": "other"}, "no JSON"):
        world.send(url, body)
    pattern = '{"body": {"kind": ["wanted"]}}'
    world.connect(url, BatchSize=1, FilterCriteria={"Filters": [{"Pattern": pattern}]})
    world.invoked(url)
    world.wait(2 * VISIBILITY_SECONDS + 5)
    expect([each.ids for each in world.invocations(url)], [[wanted]], "handled")
    world.expect_depth(url)


not_probed("15d", "it needs a capacity provider of Lambda Managed Instances, which costs money while it exists")
