"""The console of a running `tarry local`, on the same event loop: it needs no ``--write``, and ends with it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tarry.failed.pending import KIND, attempts_tables
from tarry.tools.common.audit import audit_file
from tarry.tools.console.access import Console
from tarry.tools.console.feed import publish
from tarry.tools.console.finding import place_of, queues_of_template
from tarry.tools.console.server import serve
from tarry.tools.local.aws.client import client_at
from tarry.tools.local.cloud import in_background
from tarry.tools.local.instances import file_of
from tarry.tools.template.model import ACCOUNT
from tarry.tools.template.variables import physical_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tarry.tools.console.server import Served
    from tarry.tools.local.show.board import Outlook


class LocalAccount:
    """The clients of a running `tarry local`: its SQS, and its other services."""

    def __init__(self, run: Outlook) -> None:
        self.is_aws = False
        self.endpoint = run.cloud.url
        self.region = run.cloud.plan.template.region
        self._others = run.cloud.sqs.others

    def client(self, service: str) -> Any:
        return client_at(self.endpoint if service in {"sqs", "lambda"} else self._others, service)

    def identity(self) -> str:
        """Return the account of the template's ARNs: `tarry local` checks no credentials."""
        return f"arn:aws:iam::{ACCOUNT}:root"

    def renew(self) -> None:
        """Do nothing: there are no credentials."""


@asynccontextmanager
async def serving_beside(run: Outlook, port: int = 0) -> AsyncIterator[Served]:
    """Serve the console of a running `tarry local` within the context; port 0 is a free one. Raises `PortTaken`.

    Its audit and archives are beside the stories of `tarry local`, not with those of queues at AWS.
    """
    template, account = run.cloud.plan.template, LocalAccount(run)
    state = file_of(template.path, "console")
    tables = [(name, each) for name, each in template.backing.items() if each["Type"] == KIND]
    found = await asyncio.to_thread(queues_of_template, template, account)
    place = await asyncio.to_thread(place_of, account, None)
    console = Console(
        account,
        place,
        found.queues,
        template=template,
        can_write=True,
        audit_path=audit_file(state=state),
        state=state,
        attempt_tables=attempts_tables({name: physical_name(name, each) for name, each in tables}),
        local=run,
    )
    async with serve(console, port) as served, in_background(publish(console, run)):
        yield served
