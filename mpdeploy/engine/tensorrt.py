"""Engines by TensorRT and TensorRT for RTX: one code path, what differs is asked of the ``Toolkit``."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mpdeploy.engine.backend import Inspection
from mpdeploy.engine.faults import build_fault, parse_fault
from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.inspector import inspect
from mpdeploy.engine.messages import Inbox, capture, constructed, logger_for
from mpdeploy.engine.monitor import PhaseTracker, Progress, monitor_for
from mpdeploy.engine.network import Network, read_network
from mpdeploy.engine.options import BuildOptions, Feature, Profile
from mpdeploy.engine.target import Target, choose_target
from mpdeploy.engine.toolkit import Toolkit
from mpdeploy.errors import BuildError, DependencyError
from mpdeploy.files import disk_faults, readable_file, write_bytes

_FLAGS = {
    Feature.STRIP_WEIGHTS: "STRIP_PLAN",
    Feature.REFIT: "REFIT",
    Feature.VERSION_COMPATIBLE: "VERSION_COMPATIBLE",
    Feature.WEIGHT_STREAMING: "WEIGHT_STREAMING",
    Feature.SPARSE_WEIGHTS: "SPARSE_WEIGHTS",
    Feature.STRICT_NANS: "STRICT_NANS",
}


@dataclass(frozen=True)
class TensorRtBackend:
    """Either TensorRT as a ``Backend``."""

    toolkit: Toolkit

    @property
    def name(self) -> str:
        """The word that ``--backend`` takes."""
        return self.toolkit.flavour.value

    @property
    def version(self) -> str:
        """The version of the installed module."""
        return self.toolkit.version

    def target(self, options: BuildOptions, gpus: Sequence[Gpu]) -> Target:
        """Return the target; see ``choose_target``."""
        return choose_target(self.toolkit, options, tuple(gpus))

    @contextlib.contextmanager
    def parse(self, model: Path) -> Iterator["TensorRtModel"]:
        """Yield the parsed model; see ``Backend.parse``."""
        trt = self.toolkit.module
        with capture() as inbox:
            # A fresh builder each time: a used one numbers its networks, and the number lands in the plan.
            builder = constructed(lambda: trt.Builder(logger_for(trt)))
            if builder is None:
                raise DependencyError(f"{self.toolkit.title} cannot start: {_last(inbox)}", where=str(model))
            network = builder.create_network(self.toolkit.network_flags)
            parser = trt.OnnxParser(network, logger_for(trt))
            # Weights in external files are looked for beside the path, whose last part has no meaning.  It is the same
            # for all models in a folder: the builder orders some outputs by where they lie in memory, and a path takes
            # memory.
            if not parser.parse(readable_file(model, "model").read_bytes(), f"{model.parent}/model.onnx"):
                raise parse_fault((parser.get_error(i) for i in range(parser.num_errors)), str(model))
            # The parser owns the weights that the network points to, so it lives as long as the model does.
            yield TensorRtModel(model, self.toolkit, builder, network, parser, inbox)

    def inspect(self, engine: bytes, target: Target) -> Inspection:
        """Return the counts by TensorRT's own inspector; see ``Backend.inspect``."""
        if target.gpu is None or target.gpu.capability not in target.capabilities:
            return Inspection()
        try:
            return Inspection(inspect(self.toolkit, engine))
        except BuildError as error:
            if self.toolkit.needs_gpu:
                raise
            # It was built without this GPU: what is wrong with its driver is not the engine's fault.
            return Inspection(doubt=f"the finished engine was not looked into: {error.what}")


@dataclass(frozen=True)
class TensorRtModel:
    """A parsed model as a ``ParsedModel``."""

    path: Path
    toolkit: Toolkit
    builder: Any
    definition: Any
    parser: Any
    inbox: Inbox

    @cached_property
    def network(self) -> Network:
        """What the parser made of the model."""
        return read_network(self.toolkit.module, self.definition)

    def warnings(self) -> tuple[str, ...]:
        """Return TensorRT's warnings so far."""
        return self.inbox.warnings()

    def build(self, options: BuildOptions, target: Target, progress: Progress | None, output: Path) -> None:
        """Write the serialised plan; see ``ParsedModel.build``."""
        tracker = PhaseTracker(progress)
        config = self._config(options)
        monitor = monitor_for(self.toolkit.module, tracker)
        config.progress_monitor = monitor
        timings = None if options.timing_cache is None else _read_timings(config, Path(options.timing_cache))
        plan = self.builder.build_serialized_network(self.definition, config)
        if tracker.failure is not None:
            raise tracker.failure
        if plan is None:
            raise self._fault()
        if options.timing_cache is not None and timings is not None:
            write_bytes(Path(options.timing_cache), bytes(timings.serialize()))
        with disk_faults(output):
            output.write_bytes(memoryview(plan))

    def _config(self, options: BuildOptions) -> Any:
        trt = self.toolkit.module
        config = self.builder.create_builder_config()
        # Without the names of its layers an engine cannot be inspected.
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if options.workspace is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace)
        if options.optimization_level is not None:
            config.builder_optimization_level = options.optimization_level
        if not options.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        for feature in options.features:
            if feature is Feature.HARDWARE_COMPATIBLE:
                config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
            else:
                config.set_flag(getattr(trt.BuilderFlag, _FLAGS[feature]))
        if self.toolkit.selectable and options.capabilities:
            config.num_compute_capabilities = len(options.capabilities)
            for index, sm in enumerate(options.capabilities):
                config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{sm}"), index)
        for profile in options.profiles:
            self._add_profile(config, profile)
        return config

    def _add_profile(self, config: Any, profile: Profile) -> None:
        added = self.builder.create_optimization_profile()
        for port in self.network.inputs:
            found = profile.range_of(port.name)
            if found is None:
                continue
            set_range = added.set_shape_input if port.holds_shape else added.set_shape
            set_range(port.name, found.min, found.opt, found.max)
        if config.add_optimization_profile(added) < 0:
            raise self._fault()

    def _fault(self) -> BuildError:
        from mpdeploy.graph.io import read_skeleton

        operators = {output: node.op_type for node in read_skeleton(self.path).graph.node for output in node.output}
        return build_fault(self.inbox.errors(), str(self.path), operators)


def _read_timings(config: Any, path: Path) -> Any:
    """Give the build the timings in ``path``; return the cache, which must live until the engine is built.

    What was measured on another GPU or by another version is left aside, and written over: it is of no use here.
    """
    stored = path.read_bytes() if path.is_file() else b""
    cache = config.create_timing_cache(stored)
    if not config.set_timing_cache(cache, ignore_mismatch=False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _last(inbox: Inbox) -> str:
    errors = inbox.errors()
    return errors[-1] if errors else "no reason given"
