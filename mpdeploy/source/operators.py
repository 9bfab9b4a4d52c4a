"""Which of torch's operators a stranger's program may name: those that compute, not those that reach outside."""

import re

# Namespaces of operators that only compute.  Others (distributed, RPC, symmetric memory, debugging) reach outside.
COMPUTING = frozenset(
    "aten prims prim quantized _quantized quantization quantized_decomposed higher_order torchvision onednn mkldnn "
    "mkldnn_prepacked mkl sparse rngprims onnx inductor_prims".split()
)
# Operators in those namespaces that open files, call Python or start remote work.
REACHING = frozenset(
    "save load from_file _from_file load_tensor PythonOp IgnoredPythonOp rpc_sync rpc_async rpc_remote fork_process "
    "_test_serialization_subcmul".split()
)
_PLAIN = re.compile(r"(?:_operator|math)\.[a-z]\w*|torch\.(?:sym_\w+|_sym_\w+)")
_CALLING = frozenset({"_operator.attrgetter", "_operator.methodcaller", "_operator.call"})


def forbidden_operator(name: str) -> str:
    """Return why a dotted name in TorchScript code is refused; empty if it is not.

    Operators appear there as ``torch.relu`` and ``ops.namespace.relu``.
    """
    parts = name.split(".")
    if parts[0] == "ops" and len(parts) > 1 and parts[1] not in COMPUTING:
        return f"the operator {name}"
    if parts[0] in ("torch", "ops", "aten", "prim") and REACHING.intersection(parts[1:]):
        return f"the operator {name}"
    if parts[:3] == ["__torch__", "torch", "classes"]:
        return f"the native class {name}"
    return ""


def may_target(target: str) -> bool:
    """Tell whether a node of a torch.export program may call ``target``, such as ``torch.ops.aten.relu.default``."""
    parts = target.split(".")
    if parts[:2] == ["torch", "ops"]:
        return (
            len(parts) in (4, 5)
            and parts[2] in COMPUTING
            and not REACHING.intersection(parts[3:])
            and all(re.fullmatch(r"\w+", part) and not part.startswith("__") for part in parts[3:])
        )
    return _PLAIN.fullmatch(target) is not None and target not in _CALLING
