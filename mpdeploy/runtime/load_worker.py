"""The process in which runtimes load models, one after the other; ``loadable`` starts it and talks with it."""

import importlib
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from mpdeploy.processes import end_with_parent
from mpdeploy.runtime.loadable import ONNXRUNTIME, OPENVINO, RTX, TENSORRT, Answer, Question

_SILENT = 4
_LONGEST = 300  # characters of a reason


def _onnxruntime(library: Any, path: str) -> None:
    options = library.SessionOptions()
    options.log_severity_level = _SILENT
    options.add_session_config_entry("session.disable_prepacking", "1")  # memory for speed that nobody needs here
    library.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _openvino(library: Any, path: str) -> None:
    core = library.Core()
    core.compile_model(core.read_model(path), "CPU")


def _tensorrt(library: Any, path: str) -> None:
    logger = library.Logger(library.Logger.INTERNAL_ERROR)
    builder = library.Builder(logger)
    flag = getattr(library.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = library.OnnxParser(network, logger)
    if not parser.parse_from_file(path):
        faults = [parser.get_error(i) for i in range(parser.num_errors)]
        raise ValueError("; ".join(f"{f.node_operator()} '{f.node_name()}': {f.desc()}" for f in faults))


_RUNTIMES: dict[str, tuple[str, Callable[[Any, str], None]]] = {
    ONNXRUNTIME: ("onnxruntime", _onnxruntime),
    OPENVINO: ("openvino", _openvino),
    RTX: ("tensorrt_rtx", _tensorrt),
    TENSORRT: ("tensorrt", _tensorrt),
}


def answer(question: Question) -> Answer:
    """Load the model and say how it went."""
    name, load = _RUNTIMES[question.runtime]
    library = _installed(name)
    if library is None:
        return Answer()
    try:
        load(library, question.path)
    except MemoryError:
        return Answer()  # of this machine's memory the model knows nothing
    except Exception as error:  # noqa: BLE001 - whatever a runtime raises is its answer
        return Answer(_reason(error), type(error).__name__ == "NotImplemented")
    return Answer()


def _reason(error: Exception) -> str:
    """What of a runtime's text says something: some open with a code, some with places in their own source."""
    # ONNX Runtime's read "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : <text>".
    told = str(error).rpartition("[ONNXRuntimeError] : ")[2].split(" : ", 2)[-1]
    lines = [line for line in told.splitlines() if ".cpp:" not in line and not line.startswith("Exception from src")]
    return " ".join(" ".join(lines).split())[:_LONGEST] or type(error).__name__


def _installed(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def serve(connection: Connection) -> None:
    """Answer until nobody asks any more."""
    try:
        while True:
            connection.send(answer(connection.recv()))
    except (EOFError, OSError):
        return


if __name__ == "__main__":
    # Ctrl-C reaches every process of a terminal; the one that asks decides what becomes of this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(sys.argv[2]))
    serve(Connection(int(sys.argv[1])))
