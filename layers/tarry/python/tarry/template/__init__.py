"""A SAM template, read into values: its queues, its functions, and the mappings between them."""

from tarry.template.intrinsics import Intrinsics
from tarry.template.model import EventSourceMapping, Function, Queue, Template, TemplateError
from tarry.template.reader import read_template

__all__ = [
    "EventSourceMapping",
    "Function",
    "Intrinsics",
    "Queue",
    "Template",
    "TemplateError",
    "read_template",
]
