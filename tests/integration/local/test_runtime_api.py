"""The Runtime API with a misbehaving client."""

import asyncio

import pytest

from tarry.tools.local.functions.runtime import RuntimeApi


def test_garbled_requests_are_refused_without_a_log_record(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> bytes:
        api = RuntimeApi("arn", lambda: None)
        host, _, port = (await api.open()).partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /2018-06-01/runtime/nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 404 " in await reader.readline()
        writer.write(b"8\r\n{}\r\nPOST /2018-06-01/runtime/invocation HTTP/1.1\r\n\r\n")
        response = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await api.close()
        return response

    assert b" 400 " in asyncio.run(scenario())
    assert caplog.records == []
