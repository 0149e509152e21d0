"""Facts 13 and 15: the batches and the concurrency of an event source mapping."""

from tests.facts.platforms.platform import PATIENCE_SECONDS, TIMEOUT_SECONDS, Need, Platform, expect
from tests.facts.probes.answers import VISIBILITY_SECONDS, receives
from tests.facts.probes.refusal import refused
from tests.facts.registry import mapping_probe, not_probed, probe

LOOP: tuple[Need, ...] = ("mapping", "loop detection")


@mapping_probe("13", "Above a batch size of 10 a window of 1 s is needed; 10,000 is the most")
def batch_sizes(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    with refused("11 without a window"):
        platform.connect(url, BatchSize=11)
    with refused("10,001"):
        platform.connect(url, BatchSize=10_001, MaximumBatchingWindowInSeconds=1)
    platform.connect(url, BatchSize=10_000, MaximumBatchingWindowInSeconds=1)


@mapping_probe("13", "A window is 0 to 300 s")
def windows(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=900)
    with refused("301 s"):
        platform.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=301)
    platform.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=300)


@mapping_probe("13", "FIFO: 10 at most, and no window")
def fifo_batches(platform: Platform) -> None:
    url = platform.queue(fifo=True, VisibilityTimeout=60)
    with refused("11"):
        platform.connect(url, BatchSize=11)
    with refused("a window"):
        platform.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=1)


@mapping_probe("13", "A queue whose visibility timeout is below the function's timeout is refused")
def visibility_below_the_timeout(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=TIMEOUT_SECONDS - 1)
    with refused("one second less"):
        platform.connect(url, BatchSize=1)


@mapping_probe("13", "An event is at most 6 MB: a batch is cut to it")
def six_megabytes(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    for _ in range(8):
        platform.send(url, {"filler": "x" * 1_000_000})
    platform.connect(url, BatchSize=10, MaximumBatchingWindowInSeconds=5)
    platform.until(lambda: len(receives(platform.invocations(url))) == 8, PATIENCE_SECONDS)
    sizes = [len(each.records) for each in platform.invocations(url)]
    expect(sum(sizes), 8, "handled")
    assert max(sizes) <= 6, f"batches of {sizes}"


@mapping_probe("15", "MaximumConcurrency is 2 to 1,000")
def range_of_maximum_concurrency(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    for concurrency in (1, 1_001):
        with refused(f"{concurrency:,}"):
            platform.connect(url, ScalingConfig={"MaximumConcurrency": concurrency})


@mapping_probe("15", "It limits how many invocations run at once")
def maximum_concurrency(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=120)
    for number in range(8):
        platform.send(url, {"1": {"sleep": 5}, "number": number})
    platform.connect(url, BatchSize=1, ScalingConfig={"MaximumConcurrency": 2})
    platform.until(lambda: sum(each.ended is not None for each in platform.invocations(url)) == 8, 2 * PATIENCE_SECONDS)
    invocations = platform.invoked(url, 8)
    at_once = [sum(each.began <= one.began < (each.ended or 0) for each in invocations) for one in invocations]
    assert max(at_once) <= 2, f"{max(at_once)} at once"


@mapping_probe("15", "A throttled batch comes back when its visibility ends, one receive older, without having run")
def throttled(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(2, VisibilityTimeout=VISIBILITY_SECONDS)
    message_id = platform.send(url, {})
    platform.connect(url, throttled=True, BatchSize=1)
    platform.until(lambda: bool(platform.depth(dead)["ready"]), 4 * PATIENCE_SECONDS)
    dead_letter = platform.receive_one(dead)
    expect(dead_letter["MessageId"], message_id, "the dead letter")
    expect(platform.invocations(url), [], "the invocations")


not_probed("15a", "it needs minutes of load, and AWS may change the figures")


@probe("15b", "A function that feeds its own queue is stopped after about 16 hops", cost="minutes", needs=LOOP)
def recursive_loops_are_stopped(platform: Platform) -> None:
    url, dead = platform.queue_with_dlq(2, VisibilityTimeout=VISIBILITY_SECONDS)
    platform.send(url, {"1": {"resend": True}})
    platform.connect(url, BatchSize=1)
    platform.until(lambda: bool(platform.depth(dead)["ready"]), 5 * PATIENCE_SECONDS)
    hops = len(platform.invocations(url))
    assert 14 <= hops <= 18, f"{hops} hops"
    platform.receive_one(dead)


@mapping_probe("15c", "A message that no filter matches is deleted without an invocation")
def filters_delete(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=VISIBILITY_SECONDS)
    wanted = platform.send(url, {"kind": "wanted"})
    for body in ({"kind": "other"}, "no JSON"):
        platform.send(url, body)
    pattern = '{"body": {"kind": ["wanted"]}}'
    platform.connect(url, BatchSize=1, FilterCriteria={"Filters": [{"Pattern": pattern}]})
    platform.invoked(url)
    platform.wait(2 * VISIBILITY_SECONDS + 5)
    expect([each.ids for each in platform.invocations(url)], [[wanted]], "handled")
    platform.expect_depth(url)


not_probed("15d", "it needs a capacity provider of Lambda Managed Instances, which costs money while it exists")
