"""Build an engine: check, parse, prove the precision, build, and write engine and sidecar."""

from collections.abc import Mapping
from pathlib import Path

from mpdeploy import __version__
from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.loading import this_system
from mpdeploy.engine.monitor import Progress
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.proof import check_kept, check_lowered, check_plan
from mpdeploy.engine.record import EngineRecord, sidecar_of
from mpdeploy.engine.target import check_network
from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_path, readable_file, sha256_of
from mpdeploy.graph.io import load
from mpdeploy.numerics.formats import Format
from mpdeploy.records import save
from mpdeploy.runtime.facts import FileFacts, model_facts


def build(
    model: Path | str,
    output: Path | str,
    *,
    backend: str = "rtx",
    options: BuildOptions | None = None,
    expect: Format | None = None,
    plan: Mapping[str, Format] | None = None,
    progress: Progress | None = None,
) -> EngineRecord:
    """Build an engine from the ONNX file ``model``, write it to ``output`` and its sidecar beside it.

    The engine computes in the types that stand in the model.  ``expect`` demands that most of its arithmetic
    is in that format, ``plan`` (names of values to formats) that each of these values has it; both are checked
    before the build, without a GPU.  ``progress`` is called with ``BuildStep``s and may raise to stop.

    Returns the record that the sidecar holds.  Raises ``UsageError`` for a bad file or option, ``ModelError`` for
    an invalid model, ``DependencyError`` for a missing library or GPU, ``BuildError`` for a model that the back
    end refuses or that does not keep its promise.  Whatever fails, an existing ``output`` stays as it was.
    """
    source, target_path = readable_file(Path(model), "model"), Path(output)
    chosen = options or BuildOptions()
    if source.resolve() == target_path.resolve():
        raise UsageError("the engine would overwrite the model", where=str(target_path), remedy="name another output")
    maker = find_backend(backend)
    target = maker.target(chosen, find_gpus())
    # The ONNX library's own check first: it names the node of a type error that a parser may blame on the driver.
    facts = model_facts(load(source), source)
    with maker.parse(source) as parsed:
        check_network(parsed.network, chosen, target, str(source))
        check_kept(parsed.network, facts)
        if expect is not None:
            check_lowered(parsed.network, expect, str(source))
        if plan is not None:
            check_plan(parsed.network, plan, str(source))
        with atomic_path(target_path) as scratch:
            scratch.write_bytes(parsed.build(chosen, target, progress))
            record = EngineRecord(
                tool_version=__version__,
                backend=maker.name,
                backend_version=maker.version,
                source=facts,
                engine=FileFacts(target_path.name, scratch.stat().st_size, sha256_of(scratch)),
                capabilities=target.capabilities,
                gpu=target.gpu.name if target.gpu else None,
                system=this_system(),
                options=chosen,
                inputs=parsed.network.inputs,
                outputs=parsed.network.outputs,
                census=parsed.network.census,
                expected=expect.value if expect else None,
                warnings=parsed.warnings(),
            )
            # The sidecar first: an engine is never seen beside a sidecar of another engine.
            save(record, sidecar_of(target_path))
    return record
