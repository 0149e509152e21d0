"""An archive of removed dead letters in S3, for programs that have no disk: Lambda functions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tarry.failed.archive import archived, deleted, kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tarry.failed.dead_letters import DeadLetterMessage


class ArchiveBucket:
    """An archive in a bucket: an encrypted object for each call of ``add``, numbered in order.

    The objects, one after the other, are an archive for `restore`. An error of S3 ends the removal, and what it could
    not write is not deleted.

    Args:
        s3: A boto3 client of S3. It needs ``s3:PutObject``.
        bucket: The name of the bucket.
        prefix: The beginning of the keys, used by no other run.
    """

    def __init__(self, s3: Any, bucket: str, prefix: str) -> None:
        self._s3 = s3
        self._bucket = bucket
        self._prefix = prefix.rstrip("/")
        self._objects = 0
        self.count = 0
        """The number of dead letters written."""
        self.place = f"s3://{bucket}/{self._prefix}/"
        """Where the objects are."""

    def add(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        """Write dead letters. Raises the errors of boto3."""
        if dead_letters:
            self._put(archived(dead_letters))
            self.count += len(dead_letters)

    def deleted(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        """Note that these dead letters are deleted."""
        if dead_letters:
            self._put(deleted(dead_letters))

    def keep(self, dead_letters: Sequence[DeadLetterMessage]) -> None:
        """Note that these dead letters could not be deleted."""
        if dead_letters:
            self._put(kept(dead_letters))

    def _put(self, lines: list[dict[str, Any]]) -> None:
        self._objects += 1
        self._s3.put_object(
            Bucket=self._bucket,
            Key=f"{self._prefix}/{self._objects:05}.jsonl",
            Body="".join(json.dumps(line) + "\n" for line in lines).encode(),
            ContentType="application/jsonl",
            ServerSideEncryption="AES256",
        )
