"""Intrinsic functions: resolved from the template, or refused with their place."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.tools.template import Intrinsics, TemplateError
from tarry.tools.template.intrinsics import _METHODS, intrinsic_of

SCOPE = Intrinsics(
    refs={"Stage": "prod", "Count": 3, "Names": ["a", "b"]},
    attributes={"Orders.Arn": "arn:orders"},
    mappings={"Sizes": {"prod": {"batch": 50}}},
    conditions={
        "IsProd": {"Fn::Equals": [{"Ref": "Stage"}, "prod"]},
        "IsTest": {"Fn::Equals": [{"Ref": "Stage"}, "test"]},
        "Both": {"Fn::And": [{"Condition": "IsProd"}, {"Condition": "IsTest"}]},
        "Either": {"Fn::Or": [{"Condition": "IsProd"}, {"Condition": "IsTest"}]},
        "NotProd": {"Fn::Not": [{"Condition": "IsProd"}]},
        "Circular": {"Fn::Not": [{"Condition": "Circular"}]},
    },
    pending=frozenset({"Table"}),
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        ({"Ref": "Stage"}, "prod"),
        ({"Fn::GetAtt": ["Orders", "Arn"]}, "arn:orders"),
        ({"Fn::GetAtt": "Orders.Arn"}, "arn:orders"),
        ({"Fn::Sub": "${Stage}-${Count}-${Orders.Arn}-${!Literal}"}, "prod-3-arn:orders-${Literal}"),
        ({"Fn::Sub": ["${Stage}-${x}", {"x": {"Ref": "Count"}}]}, "prod-3"),
        ({"Fn::Join": ["-", ["a", {"Ref": "Stage"}, True]]}, "a-prod-true"),
        ({"Fn::Join": [",", {"Ref": "Names"}]}, "a,b"),
        ({"Fn::Select": ["1", {"Ref": "Names"}]}, "b"),
        ({"Fn::Split": ["-", {"Fn::Sub": "a-${Stage}"}]}, ["a", "prod"]),
        ({"Fn::FindInMap": ["Sizes", {"Ref": "Stage"}, "batch"]}, 50),
        ({"Fn::If": ["IsProd", 1, {"Ref": "Nowhere"}]}, 1),
        ({"Fn::If": ["Both", 1, 2]}, 2),
        ({"Fn::If": ["Either", 1, 2]}, 1),
        ({"Fn::If": ["NotProd", 1, 2]}, 2),
        ({"a": {"Fn::If": ["IsTest", 1, {"Ref": "AWS::NoValue"}]}, "b": 2}, {"b": 2}),
        ([{"Ref": "AWS::NoValue"}, {"Ref": "Stage"}], ["prod"]),
        # pending references stay intrinsics, with everything around them resolved
        ({"Ref": "Table"}, {"Ref": "Table"}),
        ({"Fn::Sub": "${Stage}/${Table}"}, {"Fn::Join": ["", ["", "prod", "/", {"Ref": "Table"}, ""]]}),
        ({"Fn::GetAtt": ["Table", "Arn"]}, {"Fn::GetAtt": ["Table", "Arn"]}),
    ],
)
def test_an_intrinsic_is_replaced_by_its_value(value: Any, expected: Any) -> None:
    assert SCOPE.resolve(value, "here") == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"Ref": "Nowhere"}, "here: Ref Nowhere cannot be resolved"),
        ({"Fn::Sub": "${Nowhere}"}, "here: Ref Nowhere cannot be resolved"),
        ({"Fn::GetAtt": ["Nowhere", "Arn"]}, "here: GetAtt Nowhere.Arn cannot be resolved"),
        ({"Fn::ImportValue": "other"}, "here: Fn::ImportValue cannot be resolved"),
        ({"Fn::FindInMap": ["Sizes", "test", "batch"]}, "FindInMap finds no value for Sizes, test, batch"),
        ({"Fn::FindInMap": ["Sizes", "test", "batch", {}]}, "here: Fn::FindInMap cannot be resolved with"),
        ({"Fn::If": ["Missing", 1, 2]}, "no condition Missing"),
        ({"Fn::If": ["Circular", 1, 2]}, "the condition Circular refers to itself"),
        ({"Fn::Select": [5, ["a"]]}, "here: Fn::Select cannot be resolved with"),
        ({"Fn::Join": "a"}, "here: Fn::Join cannot be resolved with"),
        ({"in": {"a": {"Ref": "Nowhere"}}}, "here.in.a: Ref Nowhere"),
    ],
)
def test_an_intrinsic_that_cannot_be_resolved_is_refused_with_its_place(value: Any, text: str) -> None:
    with pytest.raises(TemplateError) as refusal:
        SCOPE.resolve(value, "here")
    assert text in str(refusal.value)


def test_a_pending_reference_is_not_resolved() -> None:
    with pytest.raises(TemplateError, match="here: Ref Table cannot be resolved from the template alone"):
        SCOPE.settled({"Fn::Sub": "${Table}"}, "here")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=False),
    st.sampled_from(
        ["", "-", "a", "prod", "batch", "Stage", "Count", "Names", "Sizes", "IsProd", "Table", "Table.Arn"]
    ),
    st.sampled_from(["Orders.Arn", "AWS::NoValue", "${Stage}/${Table}", "${!x}", "${}"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda each: (
        st.lists(each, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "DefaultValue"]), each, max_size=2)
        | st.builds(lambda name, argument: {name: argument}, st.sampled_from([*_METHODS, "Fn::ImportValue"]), each)
    ),
    max_leaves=12,
)


def intrinsics_in(value: Any) -> set[str]:
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    name = intrinsic_of(value) if isinstance(value, dict) else None
    return {name for name in (name,) if name}.union(*map(intrinsics_in, each))


@settings(max_examples=300)
@given(VALUES)
def test_whatever_stands_in_a_template_is_resolved_but_for_pending_references_or_refused(value: Any) -> None:
    try:
        found = SCOPE.resolve(value, "here")
    except TemplateError:
        return
    assert SCOPE.resolve(found, "here") == found
    assert not intrinsics_in(found) or {"Ref", "Fn::GetAtt"} & intrinsics_in(found)
