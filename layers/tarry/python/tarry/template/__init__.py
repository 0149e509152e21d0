"""SAM templates as frozen values: queues, functions, and event source mappings."""

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
