"""The network that TensorRT's parser made of the ONNX model: what the engine will compute, and in which types.

TensorRT executes exactly these types.  They can be read without a GPU, before anything is built.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mpdeploy.numerics.formats import Format

# TensorRT's names of number formats; other types keep TensorRT's name in lower case.
_TYPE_NAMES = {
    "FLOAT": Format.FP32.value,
    "HALF": Format.FP16.value,
    "BF16": Format.BF16.value,
    "FP8": Format.FP8E4M3.value,
}
_NUMPY_NAMES = {"float32": Format.FP32.value, "float16": Format.FP16.value}
# Layers that do the arithmetic which low precision is for.
_COMPUTE = {"CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY", "EINSUM", "ATTENTION_OUTPUT", "RECURRENCE", "MOE"}
# Layers that hand their first input on, number by number.
_MOVING = {"SHUFFLE", "IDENTITY", "SQUEEZE", "UNSQUEEZE", "SLICE", "CONCATENATION"}
_OPERANDS = 2  # of a product: the first two inputs
# Layers with weights of their own: the class that shows them, and its attributes.
_WEIGHTS = {
    "CONSTANT": ("IConstantLayer", ("weights",)),
    "CONVOLUTION": ("IConvolutionLayer", ("kernel", "bias")),
    "DECONVOLUTION": ("IDeconvolutionLayer", ("kernel", "bias")),
    "SCALE": ("IScaleLayer", ("scale", "shift", "power")),
}

Dimension = int | str | None


@dataclass(frozen=True)
class Port:
    """An input or output of an engine.  A dynamic dimension is its symbolic name, or None where it has none.

    ``type`` is a word of ``Format`` or a TensorRT name such as int64 and bool.  ``holds_shape`` is true of an
    input whose values, not its dimensions, decide shapes.
    """

    name: str
    type: str
    shape: tuple[Dimension, ...]
    holds_shape: bool = False

    @property
    def is_dynamic(self) -> bool:
        """Whether the builder needs a range for this input."""
        return self.holds_shape or not all(isinstance(dim, int) for dim in self.shape)


@dataclass(frozen=True)
class Census:
    """How many things of each type a network has: outputs of layers, products, weights.

    A product counts under what it multiplies: int8 where both of its operands are dequantised from that, else the
    type of its output.  ``weights`` counts elements; constants that only hold shapes are among them, as int64.
    """

    outputs: dict[str, int]
    compute: dict[str, int]
    weights: dict[str, int]


@dataclass(frozen=True)
class Network:
    """The parsed network: its ports, its census, and the type of every value that kept its ONNX name."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    census: Census
    types: dict[str, str]


def read_network(module: Any, network: Any) -> Network:
    """Return what ``network``, an ``INetworkDefinition`` of the TensorRT ``module``, holds.

    The network must not be built or read through another reference while this runs.
    """
    outputs, compute, weights = Counter[str](), Counter[str](), Counter[str]()
    types: dict[str, str] = {}
    producers: dict[str, Any] = {}
    for layer in (network.get_layer(index) for index in range(network.num_layers)):
        # Parsers add layers in the order in which they run, so what feeds this one has been seen.
        multiplied = _multiplied(layer, producers) if layer.type.name in _COMPUTE else None
        for tensor in (layer.get_output(index) for index in range(layer.num_outputs)):
            if tensor is None:  # an optional output that the model does not use
                continue
            kind = type_name(tensor.dtype)
            types[tensor.name] = kind
            outputs[kind] += 1
            compute[multiplied or kind] += layer.type.name in _COMPUTE
            producers[tensor.name] = layer
        for kind, count in _weights_of(module, layer):
            weights[kind] += count
    return Network(
        inputs=tuple(_port(network.get_input(index)) for index in range(network.num_inputs)),
        outputs=tuple(_port(network.get_output(index)) for index in range(network.num_outputs)),
        census=Census(*(_sorted(counts) for counts in (outputs, compute, weights))),
        types=types,
    )


def _multiplied(layer: Any, producers: Mapping[str, Any]) -> str | None:
    """Return the type that both operands of a product are dequantised from; None if one is not."""
    operands = [layer.get_input(index) for index in range(min(layer.num_inputs, _OPERANDS))]
    kinds = {_dequantised_from(tensor, producers) for tensor in operands}
    return kinds.pop() if len(operands) == _OPERANDS and len(kinds) == 1 else None


def _dequantised_from(tensor: Any, producers: Mapping[str, Any]) -> str | None:
    layer = producers.get(tensor.name) if tensor is not None else None
    while layer is not None and layer.type.name in _MOVING:
        layer = producers.get(layer.get_input(0).name)
    if layer is None or layer.type.name != "DEQUANTIZE":
        return None
    return type_name(layer.get_input(0).dtype)


def _weights_of(module: Any, layer: Any) -> Iterator[tuple[str, int]]:
    class_name, attributes = _WEIGHTS.get(layer.type.name, ("", ()))
    if not class_name:
        return
    # The bindings hand out every layer as a bare ILayer; this is the way to its own attributes.
    layer.__class__ = getattr(module, class_name)
    for attribute in attributes:
        weights = getattr(layer, attribute)
        if weights is not None and weights.size:
            # An array where numpy knows the type, else a Weights object (BF16, FP8).
            dtype = weights.dtype
            yield _NUMPY_NAMES.get(dtype.name) or type_name(dtype), int(weights.size)


def _port(tensor: Any) -> Port:
    names = [tensor.get_dimension_name(axis) for axis in range(len(tensor.shape))]
    shape = tuple(int(size) if size >= 0 else name for size, name in zip(tensor.shape, names, strict=True))
    return Port(tensor.name, type_name(tensor.dtype), shape, bool(tensor.is_shape_tensor and tensor.is_network_input))


def type_name(dtype: Any) -> str:
    """Return our word for a TensorRT ``DataType``: that of a ``Format``, else TensorRT's in lower case."""
    name: str = dtype.name
    return _TYPE_NAMES.get(name, name.lower())


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return {kind: counts[kind] for kind in sorted(counts) if counts[kind]}
