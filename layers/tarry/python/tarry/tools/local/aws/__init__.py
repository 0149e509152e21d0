"""The local replacements of AWS: the embedded SQS or another one, and moto for other services."""
