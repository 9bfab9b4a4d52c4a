"""TensorRT's complaints in words that name the ONNX node and the flag or edit that helps."""

import re
from collections.abc import Iterable
from typing import Any

from mpdeploy.engine.messages import clean
from mpdeploy.errors import BuildError, MpdeployError, UsageError

_REMEDIES = tuple(
    (re.compile(pattern, re.IGNORECASE), remedy)
    for pattern, remedy in (
        (
            r"same (input )?types?|types? (must|do not) match|is of type .* and .* is of type",
            "its operands differ in type: 'mpdeploy convert' on the FP32 model writes the casts",
        ),
        (r"workspace", "give it more memory with --workspace, for example --workspace 4G"),
        (r"HW-specific datatypes", "leave older GPUs out of --sm, or convert the model to fp16"),
        (r"no optimization profile|MIN<=OPT<=MAX|and profile \d", "correct the ranges given with --shapes"),
        (
            r"plugin (was )?not found|no importer registered|plugin.*creator",
            "TensorRT lacks this operator: replace it in the model",
        ),
        (r"out of ?memory|bad_alloc|allocat", "build on a machine with more memory"),
        (r"cudaError|CUDA_SUCCESS|CUDA driver", "this build needs a GPU with a current driver"),
    )
)
_NODE_PREFIX = re.compile(r"^(Invalid|Unsupported) Node - \S+\s*", re.IGNORECASE)
_ASSERTION = re.compile(r"^Assertion failed: .*?: (?=[^:]+$)")
_NOT_A_MODEL = "MODEL_DESERIALIZE_FAILED"


def parse_fault(errors: Iterable[Any], where: str) -> MpdeployError:
    """Return the fault that a parser's errors (``ParserError``s) amount to; the first one is the cause."""
    first = next(iter(errors), None)
    if first is None:
        return BuildError("the parser refused the model without a word", where=where)
    if first.code().name == _NOT_A_MODEL:
        return UsageError(
            "not an ONNX model, or one that is cut off", where=where, remedy="export or download it again"
        )
    text = _ASSERTION.sub("", clean(_NODE_PREFIX.sub("", first.desc())))
    return BuildError(
        text or "the parser refused this node", where=f"{where}{_node_of(first)}", remedy=remedy_for(text)
    )


def build_fault(errors: Iterable[str], where: str) -> BuildError:
    """Return the fault for a builder that gave no engine, from the errors it logged."""
    texts = list(errors)
    # The last error is the one that ended the build; earlier ones are often attempts that were given up.
    text = texts[-1] if texts else "the builder gave no engine and no reason"
    return BuildError(text, where=where, remedy=remedy_for(text))


def remedy_for(text: str) -> str:
    """Return what to do about one of TensorRT's messages; empty where nothing is known."""
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(text)), "")


def _node_of(error: Any) -> str:
    name, operator = error.node_name(), error.node_operator()
    if not name and not operator:
        return ""
    return f", node {name or error.node()!r} ({operator})" if operator else f", node {name!r}"
