"""What TensorRT for RTX accepts before the conversion, it accepts after it: every graph parsed, every sixth built."""

from pathlib import Path

import onnx
import pytest

from mpdeploy.conversion.api import convert
from mpdeploy.engine.options import BuildOptions, parse_capabilities
from mpdeploy.errors import BuildError, ModelError, UsageError
from tests.conversion.test_cases import AS_GIVEN

pytest.importorskip("tensorrt_rtx")
BUILT = {case.name for case in AS_GIVEN[::6]}


def refusal(path: Path, build: bool) -> str:
    from mpdeploy.engine.backends import backend_here
    from mpdeploy.engine.gpu import find_gpus

    backend, options = backend_here("rtx"), BuildOptions(capabilities=parse_capabilities(["86"]))
    try:
        with backend.parse(path) as parsed:
            if build:
                parsed.build(options, backend.target(options, find_gpus()), None, path.with_suffix(".engine"))
    except (BuildError, ModelError, UsageError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", AS_GIVEN, ids=lambda case: case.name)
def test_tensorrt_accepts_the_converted_graph(case, folder):
    source, build = folder / "source.onnx", case.name in BUILT
    onnx.save(case.build(), source)
    if refusal(source, build):
        return  # nothing to keep
    for precision in case.formats:
        made = folder / f"{precision}.onnx"
        convert(source, made, precision=precision)
        assert refusal(made, build) == ""
