"""What a file or folder from outside is, by what it holds."""

from enum import Enum
from pathlib import Path

from mpdeploy.archive import check_archive, is_archive
from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file


class Kind(Enum):
    """The forms that a model comes in."""

    ONNX = "an ONNX model"
    TORCH = "a torch file"
    SAFETENSORS = "a safetensors file"
    TORCHSCRIPT = "a TorchScript archive"
    PROGRAM = "a torch.export program"
    HUGGING_FACE = "a Hugging Face folder"
    STATE = "the state of a training"
    SHARDED = "a sharded checkpoint of torch.distributed"


_SUFFIXES = {
    ".onnx": Kind.ONNX,
    ".safetensors": Kind.SAFETENSORS,
    ".pt": Kind.TORCH,
    ".pth": Kind.TORCH,
    ".ckpt": Kind.TORCH,
    ".bin": Kind.TORCH,
    ".pkl": Kind.TORCH,
    ".pt2": Kind.PROGRAM,
    ".ts": Kind.TORCHSCRIPT,
}


def kind_of(path: Path) -> Kind:
    """Return what lies at ``path``.

    Archives are told apart by what they hold, other files by their first bytes, then by their suffix.  Raises
    ``UsageError`` if there is nothing, or nothing that can be a model.
    """
    if path.is_dir():
        return _kind_of_folder(path)
    readable_file(path, "model")
    if is_archive(path):
        return _kind_of_archive(path)
    with path.open("rb") as stream:
        first = stream.read(9)
    if first[8:9] == b"{" and path.suffix != ".onnx":
        return Kind.SAFETENSORS
    # A pickle says its protocol first, an ONNX file its version.
    kind = Kind.TORCH if first[:1] == b"\x80" else _SUFFIXES.get(path.suffix.lower())
    if kind is None and first[:1] == b"\x08":
        kind = Kind.ONNX
    if kind in (None, Kind.PROGRAM, Kind.TORCHSCRIPT):
        raise UsageError(
            "not a model in any form that is known" if kind is None else f"not {kind.value}, or a truncated one",
            where=str(path),
            remedy="give a checkpoint, state dict, TorchScript archive, .pt2, ONNX file, or Hugging Face folder",
        )
    return kind


def _kind_of_folder(path: Path) -> Kind:
    names = sorted(entry.name for entry in path.iterdir())
    if "config.json" in names:
        return Kind.HUGGING_FACE
    if "model_index.json" in names:
        models = [name for name in names if (path / name / "config.json").is_file()]
        raise UsageError(
            "a pipeline of diffusers, which is several models",
            where=str(path),
            remedy=f"export one of them: {', '.join(str(path / name) for name in models) or 'its folder'}",
        )
    # A training of ours keeps its states under the numbers of steps; a sharded one has a part of each process.
    if "process-0.pt" in names or any(name.partition(".")[0].isdigit() for name in names):
        return Kind.STATE
    if ".metadata" in names:
        return Kind.SHARDED
    inside = [name for name in names if Path(name).suffix.lower() in _SUFFIXES]
    best = next((name for name in inside if Path(name).stem == "model"), inside[0] if inside else None)
    raise UsageError(
        "a folder, not a model" if best else "the folder holds no model",
        where=str(path),
        remedy=f"give {path / best}" if best else "give a file, a Hugging Face folder, or one of sharded weights",
    )


def _kind_of_archive(path: Path) -> Kind:
    names = check_archive(path)
    inside = {name.partition("/")[2] for name in names}
    if "archive_format" in inside or "serialized_exported_program.json" in {*names, *inside}:
        return Kind.PROGRAM
    if "constants.pkl" in inside and any(name.startswith("code/") for name in inside):
        return Kind.TORCHSCRIPT
    if "data.pkl" in inside:
        return Kind.TORCH
    raise UsageError(
        "the archive holds no model",
        where=str(path),
        remedy="give what torch.save, torch.jit.save or torch.export.save wrote",
    )
