"""A model of SQS, standard and FIFO queues, whose clock is an argument."""

from tarry.tools.simulator.sqs.errors import SqsError
from tarry.tools.simulator.sqs.message import StoredMessage
from tarry.tools.simulator.sqs.message_store import Depth, Realism
from tarry.tools.simulator.sqs.model import QueueWatch, Sqs

__all__ = ["Depth", "QueueWatch", "Realism", "Sqs", "SqsError", "StoredMessage"]
