"""SQS, its event source mapping and Lambda as a model, under a virtual or the real clock. Not in the Lambda layer."""
