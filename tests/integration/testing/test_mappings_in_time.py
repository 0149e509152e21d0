"""The mappings of a sandbox, which are disabled, enabled, scaled and tagged as Lambda does it."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry.testing import Sandbox
from tests.wire import arn


def described(sandbox: Sandbox) -> dict[str, Any]:
    [found] = sandbox.mappings.list_event_source_mappings(EventSourceArn=arn("orders"))["EventSourceMappings"]
    return found


@pytest.fixture
def uuid(sandbox: Sandbox) -> str:
    sandbox.queue("orders")
    sandbox.connect(lambda event, context: sandbox.sleep(5), "orders", batch_size=1, max_concurrency=20)
    return str(described(sandbox)["UUID"])


def code_of(call: Any, **asked: Any) -> str:
    with pytest.raises(ClientError) as raised:
        call(**asked)
    return str(raised.value.response["Error"]["Code"])


def test_a_mapping_is_disabled_enabled_and_scaled_within_a_minute(sandbox: Sandbox, uuid: str) -> None:
    change = sandbox.mappings.update_event_source_mapping
    assert change(UUID=uuid, Enabled=False)["State"] == "Disabling"
    assert code_of(change, UUID=uuid, Enabled=True) == "ResourceInUseException"
    sandbox.advance(60)
    assert described(sandbox)["State"] == "Disabled"
    sandbox.send("orders", "waits")
    report = sandbox.run()
    assert (report.settled, len(sandbox.messages("orders"))) == (True, 1)
    change(UUID=uuid, ScalingConfig={"MaximumConcurrency": 2})
    assert (described(sandbox)["State"], described(sandbox)["ScalingConfig"]) == ("Updating", {"MaximumConcurrency": 2})
    sandbox.advance(60)
    assert described(sandbox)["State"] == "Disabled"
    change(UUID=uuid, Enabled=True, ScalingConfig={})
    assert "ScalingConfig" not in described(sandbox)
    sandbox.run()
    assert (described(sandbox)["State"], sandbox.messages("orders")) == ("Enabled", [])
    assert change(UUID=uuid, Enabled=True)["State"] == "Updating"


def test_a_mapping_has_tags_and_what_lambda_refuses_raises_its_errors(sandbox: Sandbox, uuid: str) -> None:
    lambda_, found = sandbox.mappings, described(sandbox)
    resource = found["EventSourceMappingArn"]
    lambda_.tag_resource(Resource=resource, Tags={"team": "shop", "tarry:guard": "note"})
    lambda_.untag_resource(Resource=resource, TagKeys=["team", "other"])
    assert lambda_.list_tags(Resource=resource) == {"Tags": {"tarry:guard": "note"}}
    assert lambda_.list_event_source_mappings(FunctionName="other")["EventSourceMappings"] == []
    unknown = "ResourceNotFoundException"
    assert code_of(lambda_.get_event_source_mapping, UUID="0") == unknown
    assert code_of(lambda_.update_event_source_mapping, UUID="0", Enabled=False) == unknown
    assert code_of(lambda_.tag_resource, Resource=f"{resource}0", Tags={}) == unknown
    assert described(sandbox) == found
