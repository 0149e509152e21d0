"""A model of SQS, standard and FIFO queues, whose clock is an argument."""

from tarry.simulator.sqs.errors import SqsError
from tarry.simulator.sqs.message import StoredMessage
from tarry.simulator.sqs.message_store import Depth
from tarry.simulator.sqs.model import Sqs
from tarry.simulator.sqs.realism import Realism

__all__ = ["Depth", "Realism", "Sqs", "SqsError", "StoredMessage"]
