"""Build an engine: check, parse, prove the precision, build, inspect, and write engine and sidecar."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mpdeploy import __version__, records
from mpdeploy.engine.backend import Backend, ParsedModel
from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.cache import BuildCache, cache_key
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.inspector import doubt_of
from mpdeploy.engine.loading import this_system
from mpdeploy.engine.monitor import Progress
from mpdeploy.engine.network import Network
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.proof import ProductFormat, check_kept, check_lowered, check_plan, narrowed, promises_of
from mpdeploy.engine.publish import publish_engine, require_free
from mpdeploy.engine.ranges import fixed_by_data, profile_from
from mpdeploy.engine.record import DriftSummary, EngineRecord, file_facts, sidecar_of
from mpdeploy.engine.spread import measure_spread
from mpdeploy.engine.target import Target, check_network
from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file, scratch_path
from mpdeploy.graph.io import files_of, load
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.apart import require_apart
from mpdeploy.runtime.facts import ModelFacts, model_facts
from mpdeploy.runtime.feeds import Data, Feeds, as_feeds
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.runner import Feed
from mpdeploy.verification.record import DriftReport


def build_engine(
    model: Path | str,
    output: Path | str,
    *,
    backend: str = "rtx",
    options: BuildOptions | None = None,
    expect: Format | ProductFormat | None = None,
    plan: Path | str | None = None,
    data: Data | None = None,
    drift: Path | str | None = None,
    cache: Path | str | None = None,
    rebuilds: int = 1,
    progress: Progress | None = None,
) -> EngineRecord:
    """Build an engine from the ONNX file ``model``, write it to ``output`` and its sidecar beside it.

    The engine computes in the types that stand in the model.  ``expect`` demands that most of its products
    multiply that format, ``plan`` (the plan that the model was converted with) that every value has its planned format;
    both are checked before the build, without a GPU.  ``data`` gives the shape ranges of dynamic inputs, ``drift``
    is the model's drift report for the record.  ``cache`` is a folder of engines built before.  ``rebuilds`` above
    1 builds that often, to see whether the engines are equal.  ``progress`` is called with ``BuildStep``s and may
    raise to stop.

    Returns the record that the sidecar holds.  Raises ``UsageError`` for a bad file or option, ``ModelError`` for
    an invalid model, ``DependencyError`` for a missing library or GPU, ``BuildError`` for a model that the back
    end refuses or that does not keep its promise.  Whatever fails, an existing ``output`` stays as it was.
    """
    source, target_path = readable_file(Path(model), "model"), Path(output)
    chosen = options or BuildOptions()
    caches = () if chosen.timing_cache is None else (Path(chosen.timing_cache),)
    require_apart((target_path, sidecar_of(target_path), *caches), models=(source,), others=(plan, drift, data))
    require_free(target_path)
    expected = None if expect is None else ProductFormat(expect.value)
    feeds = None if data is None else as_feeds(data)
    maker = find_backend(backend)
    target = maker.target(chosen, find_gpus())
    # The ONNX library's own check first: it names the node of a type error that a parser may blame on the driver.
    loaded = load(source)
    stamp = _stamp(source)
    facts = model_facts(loaded, source)
    summary = None if drift is None else _summary_of(Path(drift), facts)
    with maker.parse(source) as parsed:
        if _stamp(source) != stamp:  # else the record would hold the hashes of another model than the engine's
            raise UsageError("the model changed while it was read", where=str(source), remedy="build it again")
        found: tuple[str, ...] = ()
        if feeds is not None and not chosen.profiles:
            chosen = replace(chosen, profiles=profile_from(feeds, parsed.network.inputs, str(source)))
            found = fixed_by_data(chosen.profiles, parsed.network.inputs)
        check_network(parsed.network, chosen, target, str(source))
        _prove(parsed.network, facts, expected, None if plan is None else Path(plan))
        job = _Job(maker, facts, chosen, target, progress)
        with scratch_path(target_path) as scratch:
            reused = _make(job, parsed, scratch, None if cache is None else Path(cache))
            record = replace(
                _record(job, parsed, scratch),
                engine=replace(file_facts(scratch), name=target_path.name),
                expected=expected.value if expected else None,
                plan=None if plan is None else file_facts(Path(plan)),
                drift=summary,
                reused=reused,
            )
            doubt = doubt_of(record.inspected or {}, expected)
            record = replace(record, warnings=(*record.warnings, *found, *((doubt,) if doubt else ())))
            if rebuilds > 1:
                run = None if feeds is None or target.gpu is None else partial(_first_results, record, feeds)
                record = replace(record, spread=measure_spread(scratch, partial(_build_again, job), rebuilds, run))
            publish_engine(scratch, record, target_path)
    return record


def _stamp(model: Path) -> list[tuple[int, int]]:
    """What changes when a file of the model is written."""
    return [(state.st_mtime_ns, state.st_size) for state in (path.stat() for path in files_of(model))]


@dataclass(frozen=True)
class _Job:
    """One build, as far as it is the same each time that it is repeated."""

    maker: Backend
    model: ModelFacts
    options: BuildOptions
    target: Target
    progress: Progress | None


def _prove(network: Network, model: ModelFacts, expect: ProductFormat | None, plan: Path | None) -> None:
    check_kept(network, model)
    if expect is not None:
        check_lowered(network, expect, model.path)
    if plan is not None:
        check_plan(network, promises_of(records.load(PrecisionPlan, plan), network), model.path)


def _make(job: _Job, parsed: ParsedModel, path: Path, cache: Path | None) -> bool:
    """Write the engine to ``path``; return whether it came from the cache."""

    def make(fresh: Path) -> None:
        parsed.build(job.options, job.target, job.progress, fresh)

    if cache is None:
        make(path)
        return False
    key = cache_key(job.model, job.options, job.target, job.maker.name, job.maker.version)
    return BuildCache(cache).fetch_or_make(key, path, make)


def _record(job: _Job, parsed: ParsedModel, engine: Path) -> EngineRecord:
    seen = job.maker.inspect(engine.read_bytes(), job.target)
    return EngineRecord(
        tool_version=__version__,
        backend=job.maker.name,
        backend_version=job.maker.version,
        source=job.model,
        engine=file_facts(engine),
        capabilities=job.target.capabilities,
        gpu=job.target.gpu.name if job.target.gpu else None,
        system=this_system(),
        options=job.options,
        inputs=parsed.network.inputs,
        outputs=parsed.network.outputs,
        census=parsed.network.census,
        inspected=seen.counts,
        warnings=(*parsed.warnings(), *narrowed(parsed.network, job.model), *((seen.doubt,) if seen.doubt else ())),
    )


def _summary_of(path: Path, model: ModelFacts) -> DriftSummary:
    report = records.load(DriftReport, path)
    if [file.sha256 for file in report.candidate.files] != [file.sha256 for file in model.files]:
        raise UsageError(
            "the drift report is about another model",
            where=str(path),
            remedy=f"make one with 'mpdeploy verify REFERENCE {model.path} --data D --json'",
        )
    return DriftSummary(file_facts(path), report.verdict.passed, report.verdict.headline)


def _build_again(job: _Job, path: Path) -> None:
    with job.maker.parse(Path(job.model.path)) as parsed:  # anew: a parsed model is built once
        parsed.build(job.options, job.target, job.progress, path)


def _first_results(record: EngineRecord, feeds: Feeds, engine: Path) -> Feed:
    from mpdeploy.engine.runner import EngineRunner

    records.save(replace(record, engine=file_facts(engine)), sidecar_of(engine))
    runner = EngineRunner(engine)
    where, feed = next(feeds.labelled())
    return runner.run(fit(feed, runner.inputs, where).feed)
