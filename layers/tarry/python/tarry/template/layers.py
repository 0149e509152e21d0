"""The layers of functions: directories on this machine, or ARNs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tarry.template.document import build_method_of, layers_of, local_layers
from tarry.template.intrinsics import Intrinsics, references
from tarry.template.model import TemplateError, TemplateLayer


def read_layers(
    document: Mapping[str, Any], directory: Path, scope: Intrinsics
) -> dict[str, tuple[TemplateLayer, ...]]:
    """Return the layers of each SAM function by logical id, those of ``Globals`` first."""
    local = {
        name: TemplateLayer(directory / uri, build_method=build_method_of(document["Resources"][name]))
        for name, uri in local_layers(document).items()
    }
    scope = Intrinsics(scope.refs, scope.attributes, scope.mappings, scope.conditions, pending=frozenset(local))
    return {
        function: tuple(layer for written in layers for layer in _layers(written, local, scope))
        for function, layers in layers_of(document).items()
    }


def _layers(written: Any, local: Mapping[str, TemplateLayer], scope: Intrinsics) -> list[TemplateLayer]:
    """Return the layer of an element of ``Layers``; none for ``AWS::NoValue``."""
    try:
        resolved = scope.resolve([written], "Layers")
    except TemplateError:
        return [TemplateLayer()]
    return [
        TemplateLayer(arn=each) if isinstance(each, str) else local[references(each)[0].name]
        for each in resolved
        if isinstance(each, str) or references(each)
    ]
