"""A test file from dead letters, for `tarry failed show --pytest` and the console."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pprint import pformat
from typing import Any

from tarry.failed import DeadLetterMessage
from tarry.failed.dead_letters import fresh_envelope, user_attributes
from tarry.failed.text import printable
from tarry.failed.usage import UsageError
from tarry.record.attribute import ATTRIBUTE, dump
from tarry.settle.copies import as_sent
from tarry.sqs.refusals import MAX_ATTRIBUTES, is_reserved
from tarry.support.values import queue_arn
from tarry.tools.template import Template, TemplateFunction
from tarry.tools.template.code import import_path
from tarry.tools.template.intrinsics import references
from tarry.tools.template.model import TemplateError
from tarry.tools.template.variables import physical_name, variables_of

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/"
WIDTH = 100
INDEX = ("IndexName", "KeySchema", "Projection")
"""The properties of an index of a table that matter in moto."""

HEAD = '''\
"""Dead letters as tests, written by tarry failed show --pytest.

If the error comes from the message, its test fails with the same error, and passes once the handler is fixed. AWS is
mocked: the tables and buckets of the template that the function's environment names are created, empty. If the handler
needs items or other resources, create them in the test before the handler is imported.
"""

import importlib
import json
import sys
from pathlib import Path

import boto3
from moto import mock_aws

from tarry.testing import deliver

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / {template!r}).is_file())
'''

TEST = '''

{name} = {message}


@mock_aws
def {test}(monkeypatch):
    """{why}"""
{variables}
    for folder in {folders!r}:
        monkeypatch.syspath_prepend(str(ROOT / folder))
    monkeypatch.delitem(sys.modules, {module!r}, raising=False)
{resources}    sqs = boto3.client("sqs", "us-east-1")
    sqs.create_queue(QueueName={dead_letters!r}, Attributes={fifo!r})
    redrive = {{"deadLetterTargetArn": {arn!r}, "maxReceiveCount": 100}}
    attributes = {{"RedrivePolicy": json.dumps(redrive), **{fifo!r}}}
    queue = sqs.create_queue(QueueName={queue!r}, Attributes=attributes)["QueueUrl"]
    handler = importlib.import_module({module!r}).{attribute}
    sqs.send_message(QueueUrl=queue, **{name})
    result = deliver(handler, queue)
    assert result.states == ["COMMITTED"], result
'''


def test_file(
    dead_letters: Sequence[DeadLetterMessage], template: Template | None, template_names: Mapping[str, str]
) -> str:
    """Return a test file with a test of the handler for each dead letter.

    ``template_names`` are the queue names of the template by the names in the stack, where they differ. Raises
    `UsageError` if there is no template, or it is not clear which of its functions handles a dead letter.
    """
    if template is None:
        raise UsageError("a test needs a template, to find the handler: name one (--template FILE)")
    tests = (_test(each, _function_of(each, template, template_names), template) for each in dead_letters)
    return "".join([HEAD.format(template=template.path.name), *tests])


def _function_of(
    dead_letter: DeadLetterMessage, template: Template, template_names: Mapping[str, str]
) -> TemplateFunction:
    name = queue_arn(dead_letter.origin).name
    if not name:
        raise UsageError(f"dead letter {dead_letter.id}: the queue it came from is unknown, so a test has no handler")
    of_template = template_names.get(name, name)
    names = dict.fromkeys(each.function for each in template.mappings if each.queue == of_template)
    functions = [template.functions[each] for each in names if each in template.functions]
    if len(functions) != 1:
        found = ", ".join(each.logical_id for each in functions) or "no function"
        raise UsageError(f"{template.path}: one function must consume {name} for a test, found {found}")
    [function] = functions
    if function.code is None or not function.handler:
        raise UsageError(f"{template.path}: the code of {function.logical_id} is not on this machine")
    return function


def _test(dead_letter: DeadLetterMessage, function: TemplateFunction, template: Template) -> str:
    module, _, attribute = (function.handler or "").replace("/", ".").rpartition(".")
    short, failure = re.sub(r"\W", "_", dead_letter.id), dead_letter.failure
    queue = queue_arn(dead_letter.origin)
    why = "no failure record" if failure is None else f"{failure.type or failure.reason}: {failure.message or ''}"
    text = printable(f"{dead_letter.id} of {dead_letter.queue}: {why}").replace("\\", "\\\\").replace('"', "'")
    root = template.path.parent.resolve()  # below, the last first: each is put before those that were put there
    folders = [os.path.relpath(each.resolve(), root) for each in reversed(import_path(function))]
    variables = {"AWS_DEFAULT_REGION": "us-east-1", **dict(_variables(function, template))}
    return TEST.format(
        name=f"MESSAGE_{short}".upper(),
        test=f"test_dead_letter_{short}",
        message=_python(_message(dead_letter, is_fifo=queue.is_fifo)),
        why=text.strip(" :"),
        variables="\n".join(f"    monkeypatch.setenv({each!a}, {variables[each]!a})" for each in variables),
        resources="".join(f"    {each}\n" for each in _resources(function, template, variables)),
        folders=tuple(folders),
        module=module,
        attribute=attribute,
        dead_letters=dead_letter.queue,
        arn=f"arn:aws:sqs:us-east-1:123456789012:{dead_letter.queue}",
        queue=queue.name,
        fifo={"FifoQueue": "true"} if queue.is_fifo else {},
    )


def _python(value: Any) -> str:
    """Return a value as Python source in ASCII."""
    return pformat(value, width=WIDTH, sort_dicts=False).encode("ascii", "backslashreplace").decode()


def _message(dead_letter: DeadLetterMessage, *, is_fifo: bool) -> dict[str, Any]:
    """Return the arguments of SendMessage, with the envelope of a message that is sent back."""
    given = {name: each for name, each in user_attributes(dead_letter).items() if not is_reserved(name)}
    attributes = {name: as_sent(each) for name, each in given.items()}
    if len(attributes) < MAX_ATTRIBUTES:
        attributes[ATTRIBUTE] = {"DataType": "String", "StringValue": dump(fresh_envelope(dead_letter))}
    message: dict[str, Any] = {"MessageBody": dead_letter.body, "MessageAttributes": attributes}
    if is_fifo:
        message |= {"MessageGroupId": dead_letter.group_id or dead_letter.id, "MessageDeduplicationId": "1"}
    return message


def _variables(function: TemplateFunction, template: Template) -> Iterator[tuple[str, str]]:
    """Yield the environment variables; one that only AWS can tell gets its own name as value."""
    urls = {queue.name: f"{URL}{queue.name}" for queue in template.queues.values()}
    for name, value in function.environment.items():
        alone = replace(function, environment={name: value}, unresolved={})
        try:
            yield name, variables_of(alone, template, urls, {})[name]
        except (TemplateError, KeyError):
            yield name, name
    yield from ((name, name) for name in function.unresolved if name not in function.environment)


def _resources(function: TemplateFunction, template: Template, variables: Mapping[str, str]) -> Iterator[str]:
    """Yield Python lines that create the tables and buckets of the template that the environment names."""
    named = {reference.name for value in function.environment.values() for reference in references(value)}
    for logical_id, resource in template.backing.items():
        name = physical_name(logical_id, resource)
        if logical_id not in named and name not in variables.values():
            continue
        match resource["Type"]:
            case "AWS::DynamoDB::Table" if definition := _table(name, resource.get("Properties") or {}):
                yield 'boto3.client("dynamodb", "us-east-1").create_table('
                for each, value in definition.items():
                    text = _python(value).replace("\n", "\n" + " " * len(f"        {each}="))
                    yield f"    {each}={text},"
                yield ")"
            case "AWS::S3::Bucket":
                yield f'boto3.client("s3", "us-east-1").create_bucket(Bucket={name!a})'


def _table(name: str, properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of CreateTable for the keys and indexes; None if the template alone does not tell them."""
    indexes = {
        kind: [{each: index[each] for each in INDEX if each in index} for index in properties[kind]]
        for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes")
        if properties.get(kind)
    }
    keys = {each: properties.get(each) for each in ("AttributeDefinitions", "KeySchema")}
    definition = {"TableName": name, "BillingMode": "PAY_PER_REQUEST", **keys, **indexes}
    return None if None in keys.values() or references(definition) else definition
