"""The AWS services beside SQS that the functions of a local cloud use, and the variables that name their resources."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from tarry.local.aws.isolation import isolated_from_aws
from tarry.template.variables import variables_of
from tarry.testing.resources import Resources, moto_for

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack

    from tarry.local.functions.variables import Overrides
    from tarry.template import Template, TemplateFunction


class EmbeddedBacking:
    """moto, in this process. It is started for the first template that has tables, buckets, topics or keys.

    ``url`` is its endpoint URL, None while it does not run. ``stack`` ends it.
    """

    def __init__(self, given: Overrides, stack: AsyncExitStack) -> None:
        self.url: str | None = None
        self._given = given
        self._stack = stack
        self._resources: Resources | None = None

    async def update(self, template: Template, urls: Mapping[str, str]) -> list[str]:
        """Create the resources of a template that do not exist yet; return notes about those that cannot be changed.

        Raises:
            UsageError: a resource cannot be created, or moto is not installed.
        """
        if template.backing and self.url is None:
            await self._start(template)
        make = partial(Resources, template, urls, self._resources)
        self._resources = await asyncio.get_running_loop().run_in_executor(None, make)
        return [f"{name} stays as it was until you restart tarry local." for name in self._resources.unchanged]

    def environment(self, function: TemplateFunction) -> dict[str, str]:
        """Return the environment variables of a function, resolved, with the overrides of ``--env``.

        Raises:
            UsageError: a value refers to a resource that `tarry local` does not create.
            TemplateError: a value cannot be resolved.
        """
        assert self._resources is not None
        return self._resources.environment(function, self._given.of(function))

    async def _start(self, template: Template) -> None:
        loop, moto = asyncio.get_running_loop(), moto_for(template)
        self.url = await loop.run_in_executor(None, moto.__enter__)
        self._stack.push_async_callback(loop.run_in_executor, None, moto.__exit__, None, None, None)
        self._stack.enter_context(isolated_from_aws(template.region, self.url))  # moto makes boto3 clients itself


class ForeignBacking:
    """The services at the endpoint of another SQS, where the resources are expected to exist."""

    url: str | None = None
    """The endpoint URL of the other services; None if it is that of SQS."""

    def __init__(self, given: Overrides) -> None:
        self._given = given
        self._template: Template
        self._urls: Mapping[str, str] = {}

    async def update(self, template: Template, urls: Mapping[str, str]) -> list[str]:
        """Use the names of another template."""
        self._template, self._urls = template, urls
        return []

    def environment(self, function: TemplateFunction) -> dict[str, str]:
        """Return the environment variables of a function. Raises `TemplateError` if one cannot be resolved."""
        return variables_of(function, self._template, self._urls, self._given.of(function))
