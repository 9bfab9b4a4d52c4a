"""What a finished engine computes in, by TensorRT's own inspector: it needs the GPU that the engine is for."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from mpdeploy.engine.messages import Inbox, capture, constructed, logger_for
from mpdeploy.engine.proof import ProductFormat
from mpdeploy.engine.toolkit import Toolkit
from mpdeploy.errors import BuildError
from mpdeploy.numerics.formats import Format

# "BF16" before "FP16" and "FLOAT": the first that matches counts.
_WORDS = (
    (re.compile(r"\bBF(LOAT)?16\b", re.IGNORECASE), Format.BF16.value),
    (re.compile(r"\b(FP16|FLOAT16|HALF)\b", re.IGNORECASE), Format.FP16.value),
    (re.compile(r"\b(FP32|FLOAT32|FLOAT)\b", re.IGNORECASE), Format.FP32.value),
)


def inspect(toolkit: Toolkit, plan: bytes) -> dict[str, int]:
    """Return how many outputs of the finished engine's layers are in each floating-point format.

    Raises ``BuildError`` if TensorRT cannot load what it has just built.
    """
    trt = toolkit.module
    with capture() as inbox:
        runtime = constructed(lambda: trt.Runtime(logger_for(trt)))
        if runtime is None:
            raise BuildError(f"{toolkit.title} cannot start: {_first(inbox)}", remedy="see 'mpdeploy doctor'")
        # It brings code for the CPU along where it is version-compatible; this one we have just built ourselves.
        runtime.engine_host_code_allowed = True
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise BuildError(
                f"{toolkit.title} cannot load the engine that it built: {_first(inbox)}",
                remedy="see 'mpdeploy doctor'",
            )
        inspector = engine.create_engine_inspector()
        return formats_of(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _first(inbox: Inbox) -> str:
    return (*inbox.errors(), "no reason given")[0]


def formats_of(text: str) -> dict[str, int]:
    """Return the counts from the inspector's JSON, in the form of TensorRT 10 or 11."""
    counts = Counter[str]()
    for entry in json.loads(text).get("Layers", ()):
        if isinstance(entry, dict):  # a bare name says nothing of types
            counts.update(kind for output in entry.get("Outputs", ()) for kind in _kinds(output))
    return dict(sorted(counts.items()))


def doubt_of(counts: dict[str, int], expected: ProductFormat | None) -> str:
    """Return what speaks against ``expected`` in an engine's layers, in words; empty if nothing does.

    It is a doubt and no proof: one kernel may do a cast, a product and a cast back, and show FP32 at its outputs.  What
    the parser made of the model is the proof.  What quantised products multiply shows at no output.
    """
    if expected in (ProductFormat.FP16, ProductFormat.BF16) and counts and expected.value not in counts:
        have = ", ".join(f"{count} in {name}" for name, count in counts.items())
        return f"the inspector cannot tell whether it computes in {expected.value}: of its layers' outputs, {have}"
    return ""


def _kinds(output: Any) -> Iterator[str]:
    if not isinstance(output, dict):
        return
    # TensorRT 10 tells layout and type in one text, 11 apart.
    said = " ".join(str(text) for key, text in output.items() if "datatype" in key.lower().replace(" ", ""))
    for pattern, kind in _WORDS:
        if pattern.search(said):
            yield kind
            return
