"""The SQS model as an HTTP server, for boto3 and every other AWS SDK or CLI on this machine."""

from tarry.tools.simulator.http.server import HOST, PortTaken, serve

__all__ = ["HOST", "PortTaken", "serve"]
