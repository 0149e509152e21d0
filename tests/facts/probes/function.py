"""Facts 25 to 29: the Lambda Python runtime."""

from tests.facts.platforms.platform import TIMEOUT_SECONDS, Platform, expect
from tests.facts.registry import mapping_probe, not_probed

not_probed("25", "a protocol; the acceptance tests run the shipped functions under the real runtime client")


@mapping_probe("25a", "In the event a Binary value is base64 text, and a type keeps its label")
def attributes_in_the_event(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=30)
    attributes = {
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "label": {"DataType": "Number.int", "StringValue": "7"},
    }
    platform.send(url, {}, MessageAttributes=attributes)
    platform.connect(url, BatchSize=1)
    [invocation] = platform.invoked(url)
    found = invocation.records[0]["messageAttributes"].items()
    seen = {name: (value["dataType"], value.get("binaryValue", value.get("stringValue"))) for name, value in found}
    expect(seen, {"bytes": ("Binary", "AP8="), "label": ("Number.int", "7")}, "attributes")


@mapping_probe("25a", "AWSTraceHeader is among the system attributes")
def trace_header_in_the_event(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=30)
    header = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=0"
    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": header}}
    platform.send(url, {}, MessageSystemAttributes=system)
    platform.connect(url, BatchSize=1)
    [invocation] = platform.invoked(url)
    expect(invocation.records[0]["attributes"].get("AWSTraceHeader"), header, "AWSTraceHeader")


not_probed("26", "an environment cannot observe when Lambda freezes it")
not_probed("27", "the cost of a cold start depends on the memory; `make bench` and the budget tests measure it")


@mapping_probe("28", "At the deadline the process is killed: no `finally` runs")
def killed_at_the_deadline(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url, {"1": {"sleep": 2 * TIMEOUT_SECONDS}})
    platform.connect(url, BatchSize=1)
    platform.invoked(url)
    platform.wait(3 * TIMEOUT_SECONDS)
    [invocation] = platform.invoked(url)
    expect(invocation.ended, None, "the end of the invocation")


@mapping_probe("28", "get_remaining_time_in_millis knows the deadline")
def time_left(platform: Platform) -> None:
    url = platform.queue(VisibilityTimeout=60)
    platform.send(url, {})
    platform.connect(url, BatchSize=1)
    [invocation] = platform.invoked(url)
    limit = TIMEOUT_SECONDS * 1_000
    assert limit - 3_000 < invocation.left_ms <= limit, f"{invocation.left_ms} ms left of {limit}"


not_probed("29", "what Powertools loads does not depend on where it runs")
