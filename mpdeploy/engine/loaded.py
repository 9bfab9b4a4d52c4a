"""From an engine's bytes to an execution context, with a reason in words where TensorRT gives none."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpdeploy.engine.contract import check_contract
from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.kernels import KernelCache, kernel_cache_key, kernel_cache_path, runtime_config
from mpdeploy.engine.messages import Inbox, capture, constructed, logger_for
from mpdeploy.engine.options import Feature
from mpdeploy.engine.record import EngineRecord
from mpdeploy.engine.refit import refit
from mpdeploy.engine.toolkit import Toolkit
from mpdeploy.errors import DependencyError, UsageError

_TRUST = "MPDEPLOY_TRUST_ENGINE_CODE"


@dataclass
class LoadedEngine:
    """The one owner of what must live as long as an engine runs.

    ``config`` and ``kernels`` are None where TensorRT compiles nothing at run time; where it does, a context uses both
    until it ends, and not all bindings keep them.
    """

    runtime: Any
    engine: Any
    config: Any
    kernels: KernelCache | None
    context: Any

    def close(self) -> None:
        """Let go of everything, what uses before what is used.  The GPU must have finished all work."""
        if self.kernels is not None:
            self.kernels.save()  # those that were compiled since the last look
        self.context = None
        self.config = None
        self.kernels = None
        self.engine = None
        self.runtime = None


def load_engine(toolkit: Toolkit, record: EngineRecord, path: Path, gpu: Gpu) -> LoadedEngine:
    """Return the engine in ``path`` ready to run; ``record`` was checked against file and machine before.

    Raises ``DependencyError`` with TensorRT's reason if it cannot load it, ``UsageError`` if the engine is not what its
    sidecar says, or carries code that may not run.
    """
    trt, where = toolkit.module, str(path)
    with capture() as inbox:
        runtime = _required(constructed(lambda: trt.Runtime(logger_for(trt))), toolkit, "start", where, inbox)
        if Feature.VERSION_COMPATIBLE in record.options.features:
            _allow_its_code(runtime, where)
        content = path.read_bytes()
        engine = runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise _refusal(toolkit, "load the engine", where, (*inbox.errors(), *_diagnosis(trt, runtime, content)))
        check_contract(trt, engine, record, where)
        if Feature.STRIP_WEIGHTS in record.options.features:
            refit(trt, engine, record, path, inbox)
        if Feature.WEIGHT_STREAMING in record.options.features:
            # Left alone, the engine would keep all its weights on the GPU.
            engine.weight_streaming_budget_v2 = engine.get_weight_streaming_automatic_budget()
        key = kernel_cache_key(record, toolkit.version, gpu)
        compiling = runtime_config(trt, engine, kernel_cache_path(path, record), key)
        config, kernels = compiling or (None, None)
        make = engine.create_execution_context
        context = constructed(make if config is None else lambda: make(config))
        context = _required(context, toolkit, "make room for the engine", where, inbox)
    return LoadedEngine(runtime, engine, config, kernels, context)


def _allow_its_code(runtime: Any, where: str) -> None:
    # Such an engine brings a part of TensorRT along, as code for the CPU.
    if os.environ.get(_TRUST) != "1":
        raise UsageError(
            "a version-compatible engine brings code that runs on this machine's CPU",
            where=where,
            remedy=f"set {_TRUST}=1 if you trust who built it",
        )
    runtime.engine_host_code_allowed = True


def _diagnosis(module: Any, runtime: Any, content: bytes) -> tuple[str, ...]:
    """What TensorRT for RTX finds wrong with an engine that it does not take, in words."""
    if not (hasattr(runtime, "get_engine_validity") and hasattr(module, "EngineInvalidityDiagnostics")):
        return ()
    _, found = runtime.get_engine_validity(content)
    flags = module.EngineInvalidityDiagnostics.__members__.items()
    return tuple(name.lower().replace("_", " ") for name, flag in flags if int(flag) & int(found))


def _required(thing: Any, toolkit: Toolkit, what: str, where: str, inbox: Inbox) -> Any:
    if not thing:
        raise _refusal(toolkit, what, where, inbox.errors())
    return thing


def _refusal(toolkit: Toolkit, what: str, where: str, reasons: tuple[str, ...]) -> DependencyError:
    return DependencyError(
        f"{toolkit.title} cannot {what}: {reasons[0] if reasons else 'no reason given'}",
        where=where,
        remedy="see what works here with 'mpdeploy doctor'",
    )
