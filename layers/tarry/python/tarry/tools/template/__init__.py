"""SAM templates as frozen values: queues, functions, and event source mappings."""

from tarry.tools.template.intrinsics import Intrinsics
from tarry.tools.template.model import Template, TemplateError, TemplateFunction, TemplateMapping, TemplateQueue
from tarry.tools.template.reader import read_template

__all__ = [
    "Intrinsics",
    "Template",
    "TemplateError",
    "TemplateFunction",
    "TemplateMapping",
    "TemplateQueue",
    "read_template",
]
