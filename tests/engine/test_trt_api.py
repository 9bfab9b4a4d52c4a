"""Every name of TensorRT that the code uses exists, and is called as it wants to be.

Much of it runs on a GPU only; a name that is misspelt would be found there.  The code's own syntax tree says what it
uses, the bindings' docstrings say what they take.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import mpdeploy.engine

trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

FOLDER = Path(mpdeploy.engine.__path__[0])
MODULE = {"trt", "module"}
# What the names of variables and attributes stand for, wherever they appear in ``mpdeploy/engine``.
CLASSES = {
    "builder": "Builder",
    "definition": "INetworkDefinition",
    "network": "INetworkDefinition",
    "config": "IBuilderConfig",
    "added": "IOptimizationProfile",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "context": "IExecutionContext",
    "inspector": "EngineInspector",
    "refitter": "Refitter",
    "layer": "ILayer",
}
# Per file, where a word means something else: another class, or nothing of TensorRT's.
IN_FILE = {
    ("kernels.py", "config"): "IRuntimeConfig",
    ("kernels.py", "cache"): "IRuntimeCache",
    ("tensorrt.py", "network"): "INetworkDefinition",
    ("tensorrt.py", "cache"): "ITimingCache",
    ("tensorrt.py", "timings"): "ITimingCache",
    ("tensorrt.py", "parser"): "OnnxParser",
    ("refit.py", "parser"): "OnnxParserRefitter",
    ("contract.py", "engine"): "ICudaEngine",
    ("network.py", "tensor"): "ITensor",
}
# Where these words are our own records.
OURS = {
    ("network.py", "network"): {"inputs", "outputs", "census", "types"},
    ("tensorrt.py", "network"): {"inputs"},
}
RECORDS = {"api.py", "building.py", "target.py", "proof.py", "loading.py", "refit.py", "cache.py", "runner.py"}


@dataclass(frozen=True)
class Use:
    """``attribute`` of an object of ``kind`` (empty: of the module) at ``place``; ``call`` if it is called there."""

    place: str
    kind: str
    attribute: str
    call: ast.Call | None


def word_of(node):
    """The last word of a name or an attribute, without underscores in front."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.lstrip("_")


def uses_in(path):
    tree = ast.parse(path.read_text())
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        word = word_of(node.value)
        place = f"{path.name}:{node.lineno}"
        if word in MODULE:
            yield Use(place, "", node.attr, calls.get(id(node)))
        elif isinstance(node.value, ast.Attribute) and word_of(node.value.value) in MODULE:
            yield Use(place, node.value.attr, node.attr, calls.get(id(node)))  # an enumeration's member
        elif node.attr not in OURS.get((path.name, word), ()):
            kind = IN_FILE.get((path.name, word)) or (CLASSES.get(word) if path.name not in RECORDS else None)
            if kind:
                yield Use(place, kind, node.attr, calls.get(id(node)))


USES = [use for path in sorted(FOLDER.glob("*.py")) for use in uses_in(path)]
# Names that are no names of TensorRT's: attributes of our own objects that bear such a word.
NOT_TENSORRTS = {
    ("", "__version__"),
    ("ILogger", "__init__"),  # called with an object of ours
    ("IOutputAllocator", "__init__"),
    ("IProgressMonitor", "__init__"),
    ("ICudaEngine", "sha256"),
    ("ICudaEngine", "bytes"),
    ("ICudaEngine", "is_file"),
    ("ICudaEngine", "with_name"),
    ("ICudaEngine", "parent"),
    ("ICudaEngine", "resolve"),
    ("ICudaEngine", "__path__"),
}
LOOKED_AT = [use for use in USES if (use.kind, use.attribute) not in NOT_TENSORRTS]


def signatures(thing):
    """The argument lists that a binding's docstring names, ``self`` left out."""
    found = re.findall(r"^(?:\d+\. )?\w+\((.*)\) -> ", thing.__doc__ or "", re.MULTILINE)
    lists = []
    for text in found:
        # Types may hold commas in brackets.
        while (shorter := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
            text = shorter
        names = [part.strip() for part in text.split(",") if part.strip()]
        if names and names[0].startswith("*"):
            continue
        lists.append([name for name in names if not name.startswith("self")])
    return lists


def takes(arguments, call):
    """Whether an argument list takes a call's positional and named arguments."""
    names = [argument.split(":")[0].strip() for argument in arguments]
    given = names[: len(call.args)] + [keyword.arg for keyword in call.keywords]
    needed = [name for name, argument in zip(names, arguments, strict=True) if "=" not in argument]
    return len(call.args) <= len(names) and set(given) <= set(names) and set(needed) <= set(given)


def test_the_code_is_really_looked_at():
    seen = {(use.kind, use.attribute) for use in LOOKED_AT}
    for must in (
        ("", "Runtime"),
        ("", "Refitter"),
        ("", "IOutputAllocator"),
        ("Runtime", "deserialize_cuda_engine"),
        ("Runtime", "engine_host_code_allowed"),
        ("ICudaEngine", "create_runtime_config"),
        ("ICudaEngine", "weight_streaming_budget_v2"),
        ("IExecutionContext", "execute_async_v3"),
        ("IExecutionContext", "set_output_allocator"),
        ("IExecutionContext", "set_optimization_profile_async"),
        ("IRuntimeConfig", "dynamic_shapes_kernel_specialization_strategy"),
        ("IRuntimeCache", "deserialize"),
        ("IBuilderConfig", "set_timing_cache"),
        ("EngineInspector", "get_engine_information"),
        ("OnnxParserRefitter", "refit_from_file"),
        ("TensorLocation", "HOST"),
        ("HardwareCompatibilityLevel", "AMPERE_PLUS"),
    ):
        assert must in seen, must


@pytest.mark.parametrize("use", LOOKED_AT, ids=lambda use: f"{use.place} {use.kind}.{use.attribute}")
def test_a_name_exists_and_is_called_as_it_wants(use):
    home = getattr(trt, use.kind) if use.kind else trt
    assert hasattr(home, use.attribute), f"TensorRT's {use.kind or 'module'} has no {use.attribute}"
    thing = getattr(home, use.attribute)
    lists = signatures(thing.__init__ if isinstance(thing, type) else thing)
    splat = use.call is not None and any(isinstance(argument, ast.Starred) for argument in use.call.args)
    if use.call is not None and not splat and not isinstance(thing, property) and lists:
        assert any(takes(arguments, use.call) for arguments in lists), f"{use.attribute} takes {lists}"


def test_flags_and_words_that_are_looked_up_by_name():
    from mpdeploy.engine.network import _TYPE_NAMES, _WEIGHTS
    from mpdeploy.engine.tensorrt import _FLAGS

    for flag in _FLAGS.values():
        assert hasattr(trt.BuilderFlag, flag)
    for kind in _TYPE_NAMES:
        assert hasattr(trt.DataType, kind)
    for layer, (owner, attributes) in _WEIGHTS.items():
        assert hasattr(trt.LayerType, layer)
        for attribute in attributes:
            assert hasattr(getattr(trt, owner), attribute)


def test_the_check_itself_can_fail():
    call = ast.parse("context.set_tensor_address(a, b, c)").body[0].value
    assert not any(takes(arguments, call) for arguments in signatures(trt.IExecutionContext.set_tensor_address))
    call = ast.parse("context.set_tensor_address(a, memory=b)").body[0].value
    assert any(takes(arguments, call) for arguments in signatures(trt.IExecutionContext.set_tensor_address))
    assert not hasattr(trt.IExecutionContext, "execute_async_v4")
