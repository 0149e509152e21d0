"""From an outcome to SQS: what to send, delete or hide for a message, and what follows if SQS refuses it."""
