"""The fast checks of requests and answers, compared with botocore's validator."""

from typing import Any

import pytest
from botocore.exceptions import ParamValidationError
from hypothesis import given
from hypothesis import strategies as st

from tarry.tools.simulator.sqs.errors import check_request, fitting, report_of, service_model

SHAPES = [
    shape
    for name in service_model().operation_names
    for shape in (service_model().operation_model(name).input_shape, service_model().operation_model(name).output_shape)
    if shape is not None
]
STRANGE = st.sampled_from([None, True, -1, 1.5, "", "text", b"bytes", [], ["a"], {}, {"A": "b"}, (1,)])


def values(shape: Any) -> st.SearchStrategy[Any]:
    """Generate values that fit a shape, and some that do not."""
    fitting: st.SearchStrategy[Any]
    match shape.type_name:
        case "structure":
            required = {name: values(shape.members[name]) for name in shape.required_members}
            optional = {name: values(field) for name, field in shape.members.items() if name not in required}
            fitting = st.fixed_dictionaries(required, optional=optional)
        case "list":
            fitting = st.lists(values(shape.member), max_size=2)
        case "map":
            fitting = st.dictionaries(values(shape.key), values(shape.value), max_size=2)
        case "string":
            fitting = st.sampled_from(["", "a"])
        case "boolean":
            fitting = st.booleans()
        case "blob":
            fitting = st.sampled_from([b"", b"a"])
        case _:
            fitting = st.integers(-1, 1)
    hashable = shape.type_name == "string"
    return st.one_of(*[fitting] * 9, STRANGE.filter(lambda each: not hashable or isinstance(each, str)))


@given(st.sampled_from(SHAPES).flatmap(lambda shape: st.tuples(st.just(shape), values(shape))))
def test_the_fast_check_accepts_only_values_that_botocore_accepts(given: tuple[Any, Any]) -> None:
    shape, value = given
    if fitting(shape)(value):
        assert report_of(value, shape) == ""


def test_the_fast_check_accepts_a_common_request() -> None:
    shape = service_model().operation_model("SendMessageBatch").input_shape
    attributes = {
        "kind": {"DataType": "String", "StringValue": "order"},
        "b": {"DataType": "Binary", "BinaryValue": b"x"},
    }
    entry = {"Id": "0", "MessageBody": "a", "DelaySeconds": 5, "MessageAttributes": attributes}
    assert fitting(shape)({"QueueUrl": "u", "Entries": [entry]})


@pytest.mark.parametrize(
    "parameters",
    [{}, {"QueueUrl": "u", "MessageBody": 5}, {"QueueUrl": "u", "MessageBody": "a", "Colour": "red"}],
    ids=["missing", "another type", "unknown"],
)
def test_an_invalid_request_raises_the_error_of_botocore(parameters: dict[str, Any]) -> None:
    with pytest.raises(ParamValidationError, match="Parameter validation failed"):
        check_request("SendMessage", parameters)
