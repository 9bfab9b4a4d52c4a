"""Are the inputs and outputs of a loaded engine those that its sidecar promises?"""

from typing import Any

from mpdeploy.engine.network import Port, type_name
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import UsageError


def check_contract(module: Any, engine: Any, record: EngineRecord, where: str) -> None:
    """Raise ``UsageError`` that names the first difference in name, type, direction or fixed dimension."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    for ports, mode, what in (
        (record.inputs, module.TensorIOMode.INPUT, "input"),
        (record.outputs, module.TensorIOMode.OUTPUT, "output"),
    ):
        found = [name for name in names if engine.get_tensor_mode(name) == mode]
        promised = [port.name for port in ports]
        odd = next((name for name in (*promised, *found) if (name in promised) != (name in found)), None)
        if odd is not None:
            lacks, has = ("engine", "sidecar") if odd in promised else ("sidecar", "engine")
            raise _fault(f"the {has} has an {what} '{odd}' that the {lacks} lacks", where)
        for port in ports:
            _check_port(engine, port, what, where)


def _check_port(engine: Any, port: Port, what: str, where: str) -> None:
    kind = type_name(engine.get_tensor_dtype(port.name))
    if kind != port.type:
        raise _fault(f"{what} '{port.name}' of the engine is {kind}, its sidecar says {port.type}", where)
    shape = tuple(engine.get_tensor_shape(port.name))
    fits = len(shape) == len(port.shape) and all(
        size < 0 or not isinstance(promised, int) or size == promised
        for size, promised in zip(shape, port.shape, strict=True)
    )
    if not fits:
        raise _fault(f"{what} '{port.name}' of the engine has shape {list(shape)}, not that of its sidecar", where)


def _fault(what: str, where: str) -> UsageError:
    return UsageError(what, where=where, remedy="build it again with 'mpdeploy build'")
