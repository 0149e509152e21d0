"""The SQS model as an HTTP server, for boto3 and every other AWS SDK or CLI on this machine."""
