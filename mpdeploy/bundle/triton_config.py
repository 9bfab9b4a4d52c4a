"""One model's ``config.pbtxt``, as a message of Triton's own protobuf schema: what it accepts is all there can be."""

import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpdeploy.errors import DependencyError, ModelError, UsageError
from mpdeploy.runtime.runner import TensorSpec

_TYPES = {
    "bool": "TYPE_BOOL",
    "float16": "TYPE_FP16",
    "float32": "TYPE_FP32",
    "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16",
    "string": "TYPE_STRING",
} | {f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_REMEDY = "pip install 'mpdeploy[triton]'"


@dataclass(frozen=True)
class Batching:
    """How requests are put together: at most ``largest`` samples, waiting at most ``delay`` microseconds for more.

    ``largest`` 0 turns batching by the server off.
    """

    largest: int = 32
    delay: int = 100

    def __post_init__(self) -> None:
        if self.largest < 0 or self.delay < 0:
            raise UsageError("batch size and delay cannot be negative")


@dataclass(frozen=True)
class Servable:
    """A model as Triton sees it.

    ``holders`` are inputs and outputs of an engine whose values are shapes; ``largest_batch`` is the most that it can
    take, None if it sets no limit.  ``joins``: requests may be joined along the first axis.
    """

    name: str
    backend: str
    filename: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    on_gpu: bool
    largest_batch: int | None = None
    holders: frozenset[str] = frozenset()
    joins: bool = True

    @property
    def batches(self) -> bool:
        """Whether the first axis of every input and output counts samples: open, and not in conflict with its name.

        Engines give their outputs' axes no names, so an axis without one agrees with any.
        """
        shapes = [spec.shape or (1,) for spec in (*self.inputs, *self.outputs)]
        names = {shape[0] for shape in shapes} - {None}
        elsewhere = {size for shape in shapes for size in shape[1:]}
        return not any(isinstance(name, int) for name in names) and len(names) <= 1 and not names & elsewhere


def config_of(servable: Servable, batching: Batching, instances: int) -> Any:
    """Return a model's configuration, a ``ModelConfig`` of Triton's schema that serves one version.

    Raises ``DependencyError`` without Triton's schema, ``ModelError`` for what Triton cannot serve: a type that it
    does not have, an unknown rank, an axis of no length, a scalar outside a batch.
    """
    schema = triton_schema()
    largest = batching.largest if servable.batches and servable.joins else 0
    if servable.largest_batch is not None:
        largest = min(largest, servable.largest_batch)
    for spec in (*servable.inputs, *servable.outputs):
        _require_servable(spec, batched=largest > 0)
    config = schema.ModelConfig(
        name=servable.name, backend=servable.backend, default_model_filename=servable.filename, max_batch_size=largest
    )
    for specs, ports in ((servable.inputs, config.input), (servable.outputs, config.output)):
        for spec in specs:
            _describe(ports.add(), spec, batched=largest > 0, holder=spec.name in servable.holders)
    kind = schema.ModelInstanceGroup.KIND_GPU if servable.on_gpu else schema.ModelInstanceGroup.KIND_CPU
    config.instance_group.add(count=instances, kind=kind)
    if largest > 1:
        config.dynamic_batching.max_queue_delay_microseconds = batching.delay
    config.version_policy.latest.num_versions = 1
    return config


def text_of(config: Any) -> str:
    """Return what stands in ``config.pbtxt``."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config)
    return text


@functools.cache
def triton_schema() -> Any:
    """Return the module of Triton's ``model_config.proto`` from the installed ``tritonclient``.

    Only that one file is loaded: the client's own package would ask for gRPC.  Raises ``DependencyError`` if it is
    missing or does not go with the installed protobuf.
    """
    package = importlib.util.find_spec("tritonclient")
    homes = [] if package is None else list(package.submodule_search_locations or ())
    path = next((p for home in homes if (p := Path(home) / "grpc" / "model_config_pb2.py").is_file()), None)
    if path is None:
        raise DependencyError("a Triton repository needs Triton's schema, which is not installed", remedy=_REMEDY)
    spec = importlib.util.spec_from_file_location("mpdeploy_triton_model_config", path)
    if spec is None or spec.loader is None:
        raise DependencyError("Triton's schema cannot be loaded", where=str(path), remedy=_REMEDY)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise DependencyError(
            f"Triton's schema does not go with this protobuf: {error}", where=str(path), remedy=f"{_REMEDY} --upgrade"
        ) from error
    return module


def _require_servable(spec: TensorSpec, *, batched: bool) -> None:
    if spec.dtype not in _TYPES:
        raise ModelError(f"Triton has no type for {spec}")
    if spec.shape is None:
        raise ModelError(f"Triton needs the rank of {spec}, which is unknown")
    if 0 in spec.shape:
        raise ModelError(f"Triton takes no axis of length 0, as in {spec}")
    if not spec.shape and not batched:
        raise ModelError(f"Triton takes no scalar outside a batch, and {spec} is one")


def _describe(port: Any, spec: TensorSpec, *, batched: bool, holder: bool) -> None:
    port.name = spec.name
    port.data_type = _TYPES[spec.dtype]
    shape = [size if isinstance(size, int) else -1 for size in spec.shape or ()]
    dims = shape[1:] if batched else shape
    port.is_shape_tensor = holder
    # Triton asks for at least one dimension; the reshape takes it away again.
    port.dims.extend(dims or [1])
    if not dims:
        port.reshape.SetInParent()
