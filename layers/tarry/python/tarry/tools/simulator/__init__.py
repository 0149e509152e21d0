"""A model of SQS, the event source mapping and Lambda, in virtual or real time. Not part of the Lambda layer."""
