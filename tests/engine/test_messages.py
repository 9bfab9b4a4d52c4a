"""TensorRT's words, cleaned and translated."""

import pytest

from mpdeploy.engine.faults import build_fault, remedy_for
from mpdeploy.engine.messages import capture, clean, logger_for

STRAY = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime (In catchCudaError at "
    "/_src/common/dispatch/checkMacros.cpp:250 (cudaError 35: CUDA driver version is insufficient))"
)
TYPES = (
    "ITensor::getDimensions: Error Code 4: API Usage Error (mm0: IMatrixMultiplyLayer must have same input types. "
    "`A` is of type Half and `B` is of type Float. In validateTypes at /_src/optimizer/nodes/matrixMultiplyNode.cpp:38)"
)


def test_a_message_loses_its_wrapping_and_the_stray_line():
    cleaned = "mm0: IMatrixMultiplyLayer must have same input types. `A` is of type Half and `B` is of type Float"
    assert clean(f"{TYPES}\n{STRAY}") == cleaned
    assert clean(STRAY) == ""


def test_what_is_seen_to_anyway_is_not_told():
    assert clean("ModelImporter.cpp:1071: Make sure input ids has Int64 binding.") == ""
    assert clean("ModelImporter.cpp:7: Something else.") == "Something else."


def test_a_driver_fault_that_is_the_cause_stays():
    text = (
        "IBuilder::buildSerializedNetwork: Error Code 1: Cuda Runtime (In generateForCurrent at "
        "/_src/runtime/core/cudaDeviceProfile.cpp:221 (cudaError 35: CUDA driver version is insufficient))"
    )
    assert "cudaError 35" in clean(text)
    assert "GPU" in remedy_for(clean(text))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (TYPES, "mpdeploy convert"),
        ("no tactics to implement the operation within workspace limit", "--workspace"),
        ("Cannot compile for target(s) sm75, because the model contains HW-specific datatypes: b16", "--sm"),
        ("Network has dynamic or shape inputs, but no optimization profile has been defined", "--shapes"),
        ("something new", ""),
    ],
)
def test_known_messages_have_a_remedy(text, remedy):
    assert remedy in remedy_for(text)
    assert bool(remedy_for(text)) == bool(remedy)


def test_a_builder_that_says_nothing_still_gives_a_line():
    assert "no reason" in str(build_fault([], "model.onnx", {}))
    assert "second" in str(build_fault(["first", "second"], "model.onnx", {}))


def test_one_logger_serves_every_listener():
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    logger = logger_for(trt)
    assert logger_for(trt) is logger
    with capture() as outer:
        logger.log(trt.ILogger.WARNING, "early")
        with capture() as inner:
            logger.log(trt.ILogger.ERROR, "late")
            logger.log(trt.ILogger.ERROR, STRAY)
    logger.log(trt.ILogger.ERROR, "nobody listens")
    assert outer.warnings() == ("early",)
    assert outer.errors() == inner.errors() == ("late",)
    assert inner.warnings() == ()
