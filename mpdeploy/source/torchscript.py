"""TorchScript archives: their code is read as text before torch may run any of it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mpdeploy.archive import check_archive, opened
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.source.operators import REACHING, forbidden_operator
from mpdeploy.source.pickles import globals_of, require_sound
from mpdeploy.source.silence import silence
from mpdeploy.source.tensors import require_backed

# All that torch.jit.save writes.  What else torch would read are forms of old, with code in files of any name.
_KNOWN = re.compile(
    r"(?:data|constants|traced_inputs|bytecode|mobile_debug_handles)\.pkl|(?:data|constants|traced_inputs)/\d+|"
    r"code/[^\x00-\x1f]+\.py(?:\.debug_pkl)?|extra/[^\x00-\x1f]+|"
    r"version|byteorder|\.format_version|\.storage_alignment|\.data/(?:version|serialization_id)"
)
_OWN = "__torch__."  # classes that the archive defines itself, in TorchScript


def load_torchscript(path: Path) -> Any:
    """Return the ScriptModule in an archive, on the CPU, in FP32, in eval mode.

    TorchScript is a small language whose only way out are torch's operators: an archive that names one which
    reads or writes files, talks to other processes or calls Python is refused before it is loaded, as is a pickle
    in it that asks for Python objects.  Raises ``ModelError`` then, ``UsageError`` if the archive is damaged.
    """
    names = check_archive(path)
    with opened(path) as archive:
        for name in names:
            if not _KNOWN.fullmatch(name.partition("/")[2]):
                raise ModelError(
                    f"the archive holds {name!r}, which is no part of TorchScript",
                    where=str(path),
                    remedy="do not load it; save it again with torch.jit.save of this version of torch",
                )
            if name.endswith((".pkl", ".debug_pkl")):
                with archive.open(name) as stream:
                    require_sound(stream, f"{path}, {name}")
            if name.endswith(".pkl"):
                with archive.open(name) as stream:
                    _refuse(path, (f"the Python object {g}" for g in globals_of(stream) if not _is_script(g)))
            elif name.endswith(".py"):
                _refuse(path, _forbidden(archive.read(name), name, path))
    try:
        with silence():  # torch calls TorchScript deprecated; it is what people have
            module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]
            require_backed((*module.parameters(), *module.buffers()), path)
            return _in_eval_mode(module).float()
    except (RuntimeError, ValueError, OSError) as error:
        raise UsageError(
            f"torch cannot load the TorchScript archive: {_first_line(error)}",
            where=str(path),
            remedy="save it again with this version of torch",
        ) from error


def _in_eval_mode(module: Any) -> Any:
    try:
        return module.eval()
    except RuntimeError:  # a frozen module is in eval mode for good
        return module


def _is_script(name: str) -> bool:
    """What TorchScript's own pickles refer to: classes of the archive, and builders of tensors and typed lists."""
    return (name.startswith(_OWN) and not name.startswith(f"{_OWN}torch.classes")) or name.startswith(
        ("torch.jit._pickle.", "torch._utils._rebuild_", "collections.OrderedDict")
    )


def _forbidden(source: bytes, name: str, path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{name} in the archive is not TorchScript", where=str(path)) from error
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield f"an import in {name}"
        elif isinstance(node, ast.Attribute) and (reason := forbidden_operator(_dotted(node))):
            yield reason
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REACHING:
            # Operators may be called as a tensor's methods, too.
            yield forbidden_operator(_dotted(node.func)) or f"the operator {node.func.attr}"


def _dotted(node: ast.Attribute) -> str:
    parts = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    if isinstance(value, ast.Name):
        parts.append(value.id)
    return ".".join(reversed(parts))


def _refuse(path: Path, reasons: Iterator[str]) -> None:
    for reason in reasons:
        raise ModelError(
            f"the TorchScript archive asks for {reason}, which could reach outside the model",
            where=str(path),
            remedy="do not load it; ask who made it for a state_dict",
        )


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
