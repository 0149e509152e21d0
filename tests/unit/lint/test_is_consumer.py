"""Whether the source of a function makes its handler a consumer of tarry."""

from pathlib import Path

import pytest

from tarry.tools.check.consumers import is_consumer
from tarry.tools.template import TemplateFunction

CONSUMERS = {
    "decorated": "from tarry import consumer\n@consumer\ndef handler(message): ...",
    "decorated with settings": "from tarry import batch_consumer as b\n@b(max_attempts=3)\ndef handler(batch): ...",
    "decorated by the module": "import tarry\n@tarry.consumer()\nasync def handler(message): ...",
    "assigned": "from tarry import consumer\ndef work(message): ...\nhandler = consumer(work)",
    "changed": "from tarry import consumer\n@consumer\ndef work(message): ...\nhandler = work.replace(max_attempts=2)",
    "decorated by a preset": (
        "from functools import partial\nimport tarry as t\nours = partial(t.consumer, max_attempts=3)\n"
        "@ours()\ndef handler(message): ..."
    ),
    "called by the handler": (
        "from tarry import consumer\n@consumer\ndef work(message): ...\n"
        "def handler(event, context):\n    return work(event, context)"
    ),
    "imported": "from shared.orders import work as handler",
    "imported from a package": "from shared import handler",
    "conditional": "try:\n    from shared import handler\nexcept ImportError:\n    raise",
}
OTHERS = {
    "plain": "def handler(event, context): return event",
    "one that only sends": "from tarry import Queue\ndef handler(event, context): Queue('q').send(event)",
    "another library's consumer": "from kafka import consumer\n@consumer\ndef handler(event, context): ...",
    "another name": "from tarry import consumer\n@consumer\ndef other(message): ...\ndef handler(event, context): ...",
    "not here": "from elsewhere import handler",
    "circular": "from app import handler",
    "defined by itself": "handler = handler",
    "broken": "def handler(",
    "missing": "",
}


@pytest.mark.parametrize("case", [*CONSUMERS, *OTHERS])
def test_the_source_tells_whether_a_handler_is_a_consumer(tmp_path: Path, case: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "__init__.py").write_text("from .orders import work as handler")
    (shared / "orders.py").write_text("from tarry import consumer\n@consumer\ndef work(message): ...")
    (tmp_path / "app.py").write_text({**CONSUMERS, **OTHERS}[case])
    function = TemplateFunction("F", "F", "arn:aws:lambda:us-east-1:123456789012:function:F", tmp_path, "app.handler")
    assert is_consumer(function) is (case in CONSUMERS)
