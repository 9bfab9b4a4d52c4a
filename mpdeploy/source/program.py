"""torch.export programs (.pt2): everything in the archive that torch would execute is checked before it may."""

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mpdeploy.archive import check_archive, opened
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.source.adapter import adapt
from mpdeploy.source.inputs import Inputs, examples_in, parse_input
from mpdeploy.source.loaded import LoadedModule
from mpdeploy.source.pickles import globals_of
from mpdeploy.source.program_text import faults_in
from mpdeploy.source.silence import silence
from mpdeploy.source.tensors import require_backed
from mpdeploy.train.specs import TensorSpec

_NATIVE = "data/aotinductor/"
_RAW = re.compile(r"data/(?:weights/weight|constants/tensor)_\d+")
# Everything that torch.export.save writes; what else it would load are libraries and objects.
_KNOWN = re.compile(
    r"models/[\w.-]+\.json|data/(?:weights|constants)/[\w.-]+_config\.json|data/(?:weights|constants|sample_inputs)/"
    r"[\w.-]+\.pt|archive_format|archive_version|byteorder|version|\.format_version|\.storage_alignment|"
    r"\.data/version|\.data/serialization_id|extra/[\w./-]+"
)
_OLD = "serialized_exported_program.json"  # of torch before 2.8


def load_program(path: Path) -> Any:
    """Return the ``ExportedProgram`` in an archive.

    Loading such an archive and running it would execute what it says in many places: pickles, which torch loads
    without restriction if loading them safely fails; compiled libraries; and texts (see ``program_text``).  All are
    checked first.
    Raises ``ModelError`` that names what was found, ``UsageError`` if the archive is damaged or too old.
    """
    names = check_archive(path)
    if _OLD in names:
        raise UsageError(
            "the .pt2 archive was written by a torch before 2.8",
            where=str(path),
            remedy="load it with that version and write it again with this one's torch.export.save",
        )
    with opened(path) as archive:
        for reason in _faults(archive, names):
            raise ModelError(
                f"the .pt2 archive holds {reason}, which would run code",
                where=str(path),
                remedy="do not load it; ask who made it for a state_dict",
            )
    try:
        with silence():
            program = torch.export.load(path)
    except Exception as error:
        raise UsageError(
            f"torch cannot load the .pt2 archive: {type(error).__name__}: {error}",
            where=str(path),
            remedy="write it again with torch.export.save of this version of torch",
        ) from error
    held = (program.state_dict, program.constants, program.example_inputs)
    require_backed((t for t in tree_leaves(held) if isinstance(t, torch.Tensor)), path)
    return program


def open_program(path: Path, words: tuple[str, ...], data: Feeds | None, timeout: float | None = None) -> LoadedModule:
    """Return the program in an archive as a module; its inputs have the names and axes of ``words`` where given.

    Examples come from ``data`` or else from the archive.  Raises as ``load_program`` does, and ``ModelError`` for a
    program in half precision, ``UsageError`` if ``words`` or ``data`` do not fit the program.
    """
    where = str(path)
    program = load_program(path)
    half = [name for name, tensor in program.state_dict.items() if tensor.dtype in (torch.float16, torch.bfloat16)]
    if half:
        raise ModelError(
            f"the program computes in half precision (`{half[0]}`…), which is no FP32 reference",
            where=where,
            remedy="write it anew with torch.export.export(model.float().eval(), ...)",
        )
    specs = _specs(program, words, where)
    if data is not None:
        examples = examples_in(specs, data)
    else:
        given = (program.example_inputs or ((), {}))[0]
        if len(given) != len(specs) or not all(isinstance(value, torch.Tensor) for value in given):
            raise UsageError("the archive has no example of each input", where=where, remedy="give samples with --data")
        examples = {spec.name: tensor for spec, tensor in zip(specs, given, strict=True)}
    inputs = Inputs(specs, examples, made_up=data is None)
    module, outputs = adapt(program.module(check_guards=False), inputs, where, timeout=timeout)
    return LoadedModule(module, specs, outputs, examples, path.name, made_up=inputs.made_up, program=program)


def _specs(program: Any, words: tuple[str, ...], where: str) -> tuple[TensorSpec, ...]:
    """The inputs that the program takes, with names for the sizes that may change."""
    values = {n.name: n.meta["val"] for n in program.graph.nodes if n.op == "placeholder"}
    names = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    asked = [parse_input(word)[0] for word in words]
    if asked and len(asked) != len(names):
        raise UsageError(f"--input names {len(asked)} inputs, the program takes {', '.join(names)}", where=where)
    symbols: dict[str, str] = {}
    specs = []
    for place, name in enumerate(names):
        shape: list[int | str] = []
        for axis, size in enumerate(values[name].shape):
            wished = asked[place].shape[axis] if asked and axis < len(asked[place].shape) else None
            if isinstance(size, int):
                shape.append(size)
            else:
                usual = "batch" if axis == 0 and "batch" not in symbols.values() else f"{name}_{axis}"
                shape.append(symbols.setdefault(str(size), wished if isinstance(wished, str) else usual))
        dtype = str(values[name].dtype).removeprefix("torch.")
        specs.append(TensorSpec(asked[place].name if asked else name, dtype, tuple(shape)))
        if asked and [_fixed(a) for a in asked[place].shape] != [_fixed(a) for a in shape]:
            raise UsageError(f"--input says {asked[place]}, the program takes {specs[-1]}", where=where)
    return tuple(specs)


def _fixed(axis: int | str) -> int | None:
    return axis if isinstance(axis, int) else None


def _faults(archive: zipfile.ZipFile, names: tuple[str, ...]) -> Iterator[str]:
    roots = {name.partition("/")[0] for name in names}
    for name in names:
        inside = name.partition("/")[2]
        if _RAW.fullmatch(inside):
            continue  # numbers; whether torch takes them for a pickle is said in a .json
        if inside.startswith(_NATIVE) or len(roots) > 1 or not _KNOWN.fullmatch(inside):
            yield f"{name!r}, which is no part of a program"
            continue
        content = archive.read(name)
        if name.endswith(".json"):
            yield from faults_in(content, name)
        elif name.endswith(".pt") and content:
            yield from _pickled(content, name)


def _pickled(content: bytes, name: str) -> Iterator[str]:
    wanted: list[str] = []
    if content.startswith(b"PK"):
        check_archive(io.BytesIO(content), name)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as inner:
            for entry in inner.namelist():
                if entry.endswith(".pkl"):
                    with inner.open(entry) as stream:
                        wanted += globals_of(stream)
        # If this fails, torch would load it without the guard.
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception:  # noqa: BLE001 - whatever fails here must not be loaded
        yield f"a pickle in {name!r} that asks for {', '.join(wanted) or 'more than tensors'}"
