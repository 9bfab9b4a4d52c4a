"""Why torch could not export a model, in one line: the operator, the module, the line of code, what to try."""

import re
from types import FrameType
from typing import Any

from torch import nn

from mpdeploy.errors import ModelError
from mpdeploy.source.adapter import Adapted
from mpdeploy.source.loaded import LoadedModule

_OPERATOR = re.compile(r"OpOverload\(op='([\w.]+)'|operator '?(aten::\w+|[\w]+::\w+)'?|target=torch\.ops\.([\w.]+)")
_USER_CODE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\s*\n\s*(.+)')
_LIBRARY = ("/torch/", "/onnxscript/", "/site-packages/")


def explained(error: BaseException, loaded: LoadedModule) -> ModelError:
    """Return the fault that tells a person why the export failed."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    text = "\n".join(str(item) for item in chain)
    root = chain[-1]
    operator = _operator_in(text)
    place = _module_of(chain, loaded.module)
    code = _code_in(text)
    what = f"torch cannot export the model: {type(root).__name__}: {_first_line(root)}"
    if operator and operator not in what:
        what += f", at the operator {operator}"
    if place:
        what += f", in the module `{place}`"
    if code:
        what += f", {code}"
    return ModelError(what, where=loaded.origin, remedy=_remedy(text, operator))


def _remedy(text: str, operator: str) -> str:
    if "No ONNX function found" in text or "UnsupportedOperatorError" in text:
        return f"ONNX has no form of {operator or 'it'}: compute it outside the model, or write it with other operators"
    if "data-dependent" in text or "Could not guard" in text or "Dynamic control flow" in text:
        return "avoid Python branches on tensor values in forward(): use torch.where, or torch.cond"
    if "Constraints violated" in text or "specialized it to be a constant" in text:
        return "the code decides by a dynamic size: write it without, or fix that axis with --input NAME:SHAPE"
    if "Could not infer dtype" in text or "numpy" in text.lower():
        return "keep to torch operators in forward(): no numpy, no .item()"
    return "--debug shows torch's whole report; try it by hand with torch.export.export(model, args)"


def _operator_in(text: str) -> str:
    found = _OPERATOR.search(text)
    return next((group for group in found.groups() if group), "") if found else ""


def _code_in(text: str) -> str:
    for file, line, _, code in reversed(_USER_CODE.findall(text)):
        if not any(part in file for part in _LIBRARY):
            return f"{file.rpartition('/')[2]} line {line}: {code.strip()[:80]}"
    return ""


def _module_of(chain: list[BaseException], model: Any) -> str:
    """The innermost module that was at work: its forward() stands in the traceback, or the failing node knows it."""
    names = {id(module): name for name, module in model.named_modules()} if isinstance(model, nn.Module) else {}
    found = ""
    for error in chain:
        trace = error.__traceback__
        while trace is not None:
            found = _module_in(trace.tb_frame, names) or found
            trace = trace.tb_next
    return found.removeprefix("module.") if isinstance(model, Adapted) else found


def _module_in(frame: FrameType, names: dict[int, str]) -> str:
    local = frame.f_locals
    if frame.f_code.co_name == "forward" and id(local.get("self")) in names:
        return names[id(local["self"])]
    meta = getattr(local.get("node"), "meta", None)
    stack = meta.get("nn_module_stack") if isinstance(meta, dict) else None
    if isinstance(stack, dict) and stack:
        last = list(stack.values())[-1]
        return str(last[0]) if isinstance(last, tuple) else ""
    return ""


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")[:300]
