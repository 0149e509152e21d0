"""Ports of this machine."""

import socket


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
