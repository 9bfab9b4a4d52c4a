"""``mpdeploy.build``: an engine from an ONNX model, in the words of the command's flags."""

from collections.abc import Sequence
from pathlib import Path

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.monitor import Progress
from mpdeploy.engine.options import BuildOptions, features_named, parse_capabilities, parse_shapes, parse_size
from mpdeploy.engine.proof import ProductFormat
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.feeds import Data


def build(
    model: str | Path,
    output: str | Path,
    *,
    backend: str = "rtx",
    shapes: str | Sequence[str] = (),
    sm: str | float | Sequence[str | float] = (),
    workspace: str | int | None = None,
    opt_level: int | None = None,
    tf32: bool = False,
    feature: str | Sequence[str] = (),
    expect: str | Format | ProductFormat | None = None,
    plan: str | Path | None = None,
    data: Data | None = None,
    drift: str | Path | None = None,
    timing_cache: str | Path | None = None,
    cache: str | Path | None = None,
    rebuilds: int = 1,
    progress: Progress | None = None,
) -> EngineRecord:
    """Build an engine from the ONNX file ``model``, write it to ``output`` and its sidecar beside it.

    The engine computes in the types that stand in the model.  The arguments are the flags of `mpdeploy build`:
    ``shapes`` are words such as ``"image:1x3x8x8:4x3x8x8:8x3x8x8"``, ``sm`` compute capabilities (``86``, ``8.6``,
    ``"86,89"``), ``workspace`` bytes or ``"4G"``, ``feature`` words of ``Feature``.  A flag that may be repeated takes
    one word or several; ``data`` is what the flag names, a dict of arrays, or several.  ``progress`` is called with
    ``BuildStep``s and may raise to stop.

    Returns the record that the sidecar holds.  Raises what ``build_engine`` raises, and ``UsageError`` for a word that
    the flag would not take.
    """
    if data is not None and shapes:
        raise UsageError("the shape ranges come from --data or from --shapes, not from both", where="mpdeploy build")
    if rebuilds < 1:
        raise UsageError("an engine is built at least once", where=f"--rebuilds {rebuilds}")
    options = BuildOptions(
        profiles=parse_shapes(_words(shapes)),
        capabilities=parse_capabilities(_words(sm)),
        workspace=None if workspace is None else parse_size(str(workspace)),
        optimization_level=opt_level,
        tf32=tf32,
        timing_cache=None if timing_cache is None else str(timing_cache),
        features=features_named(_words(feature)),
    )
    return build_engine(
        model,
        output,
        backend=backend,
        options=options,
        expect=None if expect is None else _expected(expect),
        plan=plan,
        data=data,
        drift=drift,
        cache=cache,
        rebuilds=rebuilds,
        progress=progress,
    )


def _words(given: str | float | Sequence[str | float]) -> tuple[str, ...]:
    return (str(given),) if isinstance(given, str | int | float) else tuple(map(str, given))


def _expected(word: str | Format | ProductFormat) -> ProductFormat:
    word = word if isinstance(word, str) else word.value
    found = next((kind for kind in ProductFormat if word == kind.value), None)
    if found is None:
        known = ", ".join(kind.value for kind in ProductFormat)
        raise UsageError(f"an engine cannot be expected in {word!r}", where="--expect", remedy=f"choose from {known}")
    return found
