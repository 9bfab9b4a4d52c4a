"""May a release be shipped?  Every half-precision model needs a pass, every engine a model that has one."""

from collections.abc import Iterator

from mpdeploy.bundle.contents import Contents, FoundEngine, FoundModel, hashes_of
from mpdeploy.numerics.formats import Format


def reasons_against(contents: Contents) -> tuple[str, ...]:
    """Return one sentence for each thing that forbids shipping; none if all is well."""
    return tuple(_of_models(contents)) + tuple(_of_engines(contents))


def source_of(engine: FoundEngine, contents: Contents) -> FoundModel | None:
    """Return the model that an engine was built from, told by its hashes; None if it is not among the contents."""
    wanted = hashes_of(engine.record.source)
    return next((model for model in contents.models if hashes_of(model.facts) == wanted), None)


def _of_models(contents: Contents) -> Iterator[str]:
    for model in contents.models:
        kind = model.facts.coarsest
        if kind is Format.FP32:
            continue
        verdict = contents.verdict_on(model.facts)
        if verdict is None:
            yield f"{model.path.name} computes in {kind.value} and no drift report is about it"
        elif not verdict.passed:
            yield f"{model.path.name} failed verification: {verdict.headline}"


def _of_engines(contents: Contents) -> Iterator[str]:
    for engine in contents.engines:
        if source_of(engine, contents) is None:
            yield f"{engine.path.name} was built from a model that is not in the bundle"
