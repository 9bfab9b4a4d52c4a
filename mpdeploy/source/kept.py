"""The bridge from training to the precision plan: the operators of modules that trained in FP32."""

from collections.abc import Sequence
from pathlib import Path

from mpdeploy.amp.fp32_modules import is_named
from mpdeploy.graph.io import load
from mpdeploy.source.matching import modules_of


def kept_nodes(patterns: Sequence[str], onnx: Path) -> tuple[str, ...]:
    """Return the names of the nodes of an exported ONNX file that belong to modules named like one of ``patterns``.

    The exporter records for each node in which modules it is.
    """
    if not patterns:
        return ()
    names = []
    for node in load(onnx).graph:
        inside = any(is_named(module, pattern) for module in modules_of(node) if module for pattern in patterns)
        if inside and node.name:
            names.append(node.name)
    return tuple(names)
