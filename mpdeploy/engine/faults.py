"""TensorRT's complaints in words that name the ONNX node and the flag or edit that helps."""

import re
from collections.abc import Iterable, Mapping
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
        (
            r"no optimization profile|MIN<=OPT<=MAX|profile \d|violate shape constraints",
            "correct the ranges given with --shapes",
        ),
        (
            r"plugin (was )?not found|no importer registered|plugin.*creator|lacks the operator",
            "replace it in the model: TensorRT cannot run it",
        ),
        (r"out of ?memory|bad_alloc|allocat", "build on a machine with more memory"),
        (r"cudaError|CUDA_SUCCESS|CUDA driver", "this build needs a GPU with a current driver"),
        (
            r"Myelin",
            "it fails at fusing operators of different formats: convert the FP32 model again, with another --policy, "
            "or with --keep-fp32 for the part around them",
        ),
    )
)
# What the parser says where an operator, or a form of it, has no importer: the bare condition that failed.
_NO_IMPORTER = "false"
_STRING_TYPE = re.compile(r"^Unsupported ONNX data type|Failed to convert ONNX dat[ae] type", re.IGNORECASE)
_CONDITION = re.compile(r'^(?:Assertion failed: )?[^"]*&& "(?P<text>[^"]*)"$')
_TYPED_OPERATOR = re.compile(r"supported for the (?P<operator>\w+) operator.*current type = (?P<type>\w+)")
# The builder's name of a value's maker ends its account of an operation: "... stream = 0 // node_of_y | ...".
_MAKER = re.compile(
    r"Could not infer output types for operation: \d+: (?P<kind>\w+):.*?// node_of_(?P<value>[^|]+?) \|"
)
_NO_RUNNER = re.compile(r"node_of_(?P<value>\S+?)(_\d+)? has no runners that implement it")
_NODE_PREFIX = re.compile(r"^(Invalid|Unsupported) Node - \S+\s*", re.IGNORECASE)
_ASSERTION = re.compile(r"^Assertion failed: .*?: (?=[^:]+$)")
_NOT_A_MODEL = "MODEL_DESERIALIZE_FAILED"


def parse_fault(errors: Iterable[Any], where: str) -> MpdeployError:
    """Return the fault that a parser's errors (``ParserError``s) amount to; the first one is the cause."""
    first = next(iter(errors), None)
    if first is None:
        return BuildError("the parser refused the model without giving a reason", where=where)
    if first.code().name == _NOT_A_MODEL:
        return UsageError(
            "not an ONNX model, or one that is cut off", where=where, remedy="export or download it again"
        )
    text = _plain(clean(_NODE_PREFIX.sub("", first.desc())), first.node_operator())
    typed = _TYPED_OPERATOR.search(text)
    remedy = _keep_in_fp32(typed["operator"]) if typed else remedy_for(text)
    return BuildError(text, where=f"{where}{_node_of(first)}", remedy=remedy)


def build_fault(errors: Iterable[str], where: str, operators: Mapping[str, str]) -> BuildError:
    """Return the fault for a builder that gave no engine, from the errors it logged.

    ``operators`` gives the ONNX operator that makes each value.
    """
    texts = list(errors)
    # The last error is the one that ended the build; earlier ones are often attempts that were given up.
    text = texts[-1] if texts else "the builder gave no engine and no reason"
    # Not at the end: what follows it are consequences.
    maker = next((match for match in map(_MAKER.search, texts) if match), None)
    if maker and maker["value"] in operators:
        operator = operators[maker["value"]]
        return BuildError(
            f"the builder has no kernel for this {operator} in the types that it has",
            where=f"{where}, the node that makes '{maker['value']}' ({operator})",
            remedy=_keep_in_fp32(operator),
        )
    unrun = next((match for match in map(_NO_RUNNER.search, texts) if match), None)
    if unrun and unrun["value"] in operators:
        operator = operators[unrun["value"]]
        return BuildError(
            f"the builder has no kernel for this {operator}",
            where=f"{where}, the node that makes '{unrun['value']}' ({operator})",
            remedy="replace it in the model, or leave it out and do it after the engine: TensorRT cannot run it here",
        )
    return BuildError(text, where=where, remedy=remedy_for(text))


def remedy_for(text: str) -> str:
    """Return what to do about one of TensorRT's messages; empty where nothing is known."""
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(text)), "")


def _plain(text: str, operator: str) -> str:
    condition = _CONDITION.match(text)
    text = condition["text"] if condition else _ASSERTION.sub("", text)
    if _STRING_TYPE.search(text):
        return "an input or output has a type that TensorRT lacks, such as string"
    if text == _NO_IMPORTER:
        return f"TensorRT lacks the operator {operator}, or this form of it"
    return text or "the parser refused this node"


def _keep_in_fp32(operator: str) -> str:
    return f"keep it in FP32: convert again with --op-fp32 {operator}"


def _node_of(error: Any) -> str:
    name, operator = error.node_name(), error.node_operator()
    if not name and not operator:
        return ""
    return f", node {name or error.node()!r} ({operator})" if operator else f", node {name!r}"
