"""All that talks to SQS: looking up queues, changing visibility, sending, deleting, and their order in a settlement."""
