"""A SAM template, read into values: its queues, its functions, and the mappings between them."""

from tarry.template.intrinsics import Intrinsics
from tarry.template.model import Template, TemplateError, TemplateFunction, TemplateMapping, TemplateQueue
from tarry.template.reader import read_template

__all__ = [
    "Intrinsics",
    "Template",
    "TemplateError",
    "TemplateFunction",
    "TemplateMapping",
    "TemplateQueue",
    "read_template",
]
