"""What stands in for AWS: an SQS, ours or another, and moto for the rest."""
