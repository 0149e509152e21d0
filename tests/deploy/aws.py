"""Clients of MiniStack."""

from functools import cache
from typing import Any

import boto3
from botocore.config import Config

ACCOUNT = "123456789012"
REGION = "us-east-1"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": REGION}
"""Credentials of the account itself, which may do everything."""


@cache
def client(service: Any, url: str) -> Any:
    """Return the client for a service of MiniStack at this URL, which threads may share."""
    session = boto3.Session(KEYS["AWS_ACCESS_KEY_ID"], KEYS["AWS_SECRET_ACCESS_KEY"], region_name=REGION)
    return session.client(service, endpoint_url=url, config=Config(retries={"total_max_attempts": 2}))
