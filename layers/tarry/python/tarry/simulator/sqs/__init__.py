"""A model of SQS, standard and FIFO, that knows no time but the one it is told."""

from tarry.simulator.sqs.errors import SqsError
from tarry.simulator.sqs.message import StoredMessage
from tarry.simulator.sqs.model import Sqs
from tarry.simulator.sqs.realism import Realism
from tarry.simulator.sqs.stock import Depth

__all__ = ["Depth", "Realism", "Sqs", "SqsError", "StoredMessage"]
