"""Changes of an attempt record, and the requests that write them to a table of DynamoDB."""

import copy
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tarry import AttemptChange, DynamoDBAttempts
from tests.wire import client_error

FIELDS = {"state": "S", "next_try": 9, "failure": {}, "history": []}
OF_END = {"state": "S", "closed": 3}


@pytest.mark.parametrize(
    ("kind", "record", "after"),
    [
        ("run", None, {"runs": [1, 3], "deliveries": [1, 3], "latest": 3, **FIELDS}),
        ("seen", None, {"runs": [1], "deliveries": [1, 3], "latest": 3, **FIELDS}),
        ("start", None, {"runs": [1], "deliveries": [1], "started": [3], "latest": 3, **FIELDS}),
        ("end", None, None),
        ("end", {}, {"runs": [1], "deliveries": [1, 3], **OF_END}),
        ("end", {"runs": [2], "latest": 4, "queue": "q", **FIELDS},
         {"runs": [1, 2], "deliveries": [1, 3], "latest": 4, "queue": "q", **OF_END}),
        ("run", {"runs": [2, 3], "closed": 2},
         {"runs": [1, 2, 3], "deliveries": [1, 3], "closed": 2, "latest": 3, **FIELDS}),
        ("run", {"closed": 3}, None), ("end", {"closed": 3}, None), ("run", {"closed": 4}, None),
        ("run", {"latest": 3}, {"runs": [1, 3], "deliveries": [1, 3], "latest": 3, **FIELDS}),
        ("run", {"latest": 4, "state": "T"}, {"runs": [1, 3], "deliveries": [1, 3], "latest": 4, "state": "T"}),
    ],
)  # fmt: skip
def test_a_change_adds_its_counts_and_sets_its_fields_unless_a_later_delivery_has_written(
    kind: Any, record: Any, after: Any
) -> None:  # SPEC O2
    before = copy.deepcopy(record)
    assert AttemptChange("a", 3, kind, FIELDS, (1,)).applied_to(record) == after
    assert record == before


def test_a_change_of_the_first_delivery_is_written() -> None:
    assert AttemptChange("a", 1, "run", {}).applied_to({}) == {"runs": [1], "deliveries": [1], "latest": 1}


# the table


class Client:
    """A client of DynamoDB that answers each request with the next of ``answers``, or raises it."""

    def __init__(self, *answers: Any) -> None:
        self.requests: list[Any] = []
        self._answers = list(answers)

    def __getattr__(self, operation: str) -> Any:
        return partial(self._answer, operation)

    def _answer(self, operation: str, **parameters: Any) -> Any:
        self.requests.append((operation, parameters))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def page(*items: Any, left: str = "") -> dict[str, Any]:
    """Return an answer to BatchGetItem, with the keys that were not processed."""
    more = {"UnprocessedKeys": {"table": {"Keys": [{"id": {"S": key}} for key in left]}}} if left else {}
    return {"Responses": {"table": list(items)}, **more}


def test_records_are_read_consistently_as_they_were_written_and_those_left_out_once_more() -> None:  # SPEC O1
    written = {
        "id": {"S": "a"}, "runs": {"NS": ["10", "9"]}, "attempt": {"N": "2"}, "next_try": {"N": "1.5"},
        "state": {"S": "[7]"}, "failure": {"S": '{"reason":"error"}'}, "history": {"S": "{"}, "odd": {"NS": ["x"]},
        "latest": {"N": "x"},
    }  # fmt: skip
    client = Client(page(written, left="b"), page({"id": {"S": "b"}}))
    assert DynamoDBAttempts("table", client=client).read("ab") == {
        "a": {
            "id": "a", "runs": [9, 10], "attempt": 2, "next_try": 1.5, "state": "[7]", "failure": {"reason": "error"},
            "history": "{", "odd": ["x"], "latest": "x",
        },
        "b": {"id": "b"},
    }  # fmt: skip
    asked = [{"table": {"Keys": [{"id": {"S": key}} for key in keys], "ConsistentRead": True}} for keys in ("ab", "b")]
    assert client.requests == [("batch_get_item", {"RequestItems": each}) for each in asked]
    client = Client(page(left="ab"), page(left="b"))
    with pytest.raises(TimeoutError, match="DynamoDB did not process 1 of 2 keys: the table is throttled"):
        DynamoDBAttempts("table", client=client).read("ab")


COUNTING: dict[str, Any] = {
    "TableName": "table", "Key": {"id": {"S": "a"}}, "UpdateExpression": "ADD runs :runs, deliveries :deliveries",
    "ConditionExpression": "(attribute_not_exists(closed) OR closed < :count)",
    "ExpressionAttributeValues": {":count": {"N": "3"}, ":runs": {"NS": ["1", "3"]}, ":deliveries": {"NS": ["1", "3"]}},
}  # fmt: skip
WRITTEN = COUNTING | {
    "UpdateExpression": f"SET #state = :state, #failure = :failure, latest = :count {COUNTING['UpdateExpression']}",
    "ConditionExpression": COUNTING["ConditionExpression"]
    + " AND (attribute_not_exists(latest) OR latest <= :count)",
    "ExpressionAttributeNames": {"#state": "state", "#failure": "failure"},
    "ExpressionAttributeValues": COUNTING["ExpressionAttributeValues"]
    | {":state": {"S": "S"}, ":failure": {"S": '{"attempts":1}'}},
}  # fmt: skip
ENDED = COUNTING | {
    "UpdateExpression": "SET #attempt = :attempt, closed = :count ADD deliveries :deliveries "
    "REMOVE failure, history, next_try",
    "ConditionExpression": COUNTING["ConditionExpression"] + " AND attribute_exists(id)",
    "ExpressionAttributeNames": {"#attempt": "attempt"},
    "ExpressionAttributeValues": {":count": {"N": "3"}, ":deliveries": {"NS": ["3"]}, ":attempt": {"N": "2"}},
}
RUN = AttemptChange("a", 3, "run", {"state": "S", "failure": {"attempts": 1}, "next_try": None}, (1,))
END = AttemptChange("a", 3, "end", {"attempt": 2, "failure": {}, "history": [], "next_try": 9})
REFUSED = client_error("ConditionalCheckFailedException")
THROTTLED = client_error("ThrottlingException")


def cancelled(*codes: str) -> ClientError:
    """Return the error of a transaction, with the reasons of its changes."""
    error = client_error("TransactionCanceledException")
    error.response["CancellationReasons"] = [{"Code": code} if code else {} for code in codes]
    return error


def written(changes: list[AttemptChange], *answers: Any) -> list[list[Any]]:
    """Return the updates of each request to write the changes; the others are not answered."""
    client = Client(*answers)
    DynamoDBAttempts("table", client=client).write(changes)
    return [
        [parameters]
        if operation == "update_item"
        else [operation, *(each["Update"] for each in parameters["TransactItems"])]
        for operation, parameters in client.requests
    ]


def test_a_change_is_one_update_and_only_counts_if_a_later_delivery_has_written() -> None:  # SPEC O1, O2
    assert written([RUN], {}) == [[WRITTEN]]
    assert written([END], {}) == [[ENDED]]
    assert written([AttemptChange("a", 3, "run", {}, (1,))], {}) == [
        [{name: value for name, value in WRITTEN.items() if name != "ExpressionAttributeNames"}
         | {"UpdateExpression": f"SET latest = :count {COUNTING['UpdateExpression']}",
            "ExpressionAttributeValues": COUNTING["ExpressionAttributeValues"]}]
    ]  # fmt: skip
    assert written([RUN], REFUSED, {}) == written([RUN], REFUSED, REFUSED) == [[WRITTEN], [COUNTING]]
    assert written([END], REFUSED) == [[ENDED]]
    with pytest.raises(ClientError, match="Throttling"):
        written([RUN], THROTTLED)


def of(key: str, *updates: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**update, "Key": {"id": {"S": key}}} for update in updates]


def test_a_change_that_is_refused_or_fails_does_not_lose_the_others_of_its_transaction() -> None:  # SPEC O1, O4
    both = [RUN, RUN._changed(id="b")]
    first = ["transact_write_items", WRITTEN, *of("b", WRITTEN)]
    assert written([], {}) == []
    assert written(both, {}) == [first]
    counted = ["transact_write_items", WRITTEN, *of("b", COUNTING)]
    assert written(both, cancelled("None", "ConditionalCheckFailed"), {}) == [first, counted]
    assert written(both, cancelled("", "ConditionalCheckFailed"), {}) == [first, counted]
    assert written([RUN, END._changed(id="b")], cancelled("None", "ConditionalCheckFailed"), {})[1:] == [[WRITTEN]]
    with pytest.raises(ClientError, match="Throttling"):
        written(both, THROTTLED)
    client, conflict = Client(*[cancelled("None", "TransactionConflict")] * 2, {}), "TransactionCanceled"
    with pytest.raises(ClientError, match=conflict):
        DynamoDBAttempts("table", client=client).write(both)
    assert [operation for operation, _ in client.requests] == ["transact_write_items"] * 2 + ["update_item"]
    assert client.requests[-1][1] == WRITTEN
    three = [*both, RUN._changed(id="c")]
    client = Client(*[cancelled("None", "None", "TransactionConflict")] * 2, cancelled("TransactionConflict", "None"))
    with pytest.raises(ClientError, match=conflict):
        DynamoDBAttempts("table", client=client).write(three)
    assert [len(each["TransactItems"]) for _, each in client.requests] == [3, 3, 2]
    client = Client(*[cancelled("None", "TransactionConflict")] * 2, REFUSED)
    with pytest.raises(ClientError, match=conflict):
        DynamoDBAttempts("table", client=client).write(both)
    assert written(both, *[cancelled("None", "ConditionalCheckFailed")] * 2, {}) == [first, counted, [WRITTEN]]
