"""Nothing from a stranger runs: every trap here plants a marker file, and the marker is never touched."""

import argparse
import io
import json
import os
import pickle
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mpdeploy.errors import ModelError, MpdeployError, UsageError
from mpdeploy.source import Given, open_source
from mpdeploy.source.operators import may_target
from mpdeploy.source.program import load_program
from mpdeploy.source.program_text import is_arithmetic, is_guard
from mpdeploy.source.tensors import Dropped, read_torch
from mpdeploy.source.torchscript import load_torchscript

IMAGE = ("image:batch,3,8,8",)


class Plant:
    """Unpickling it makes the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "marker"
    yield path
    assert not path.exists()


# --- pickles


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_planted_call_in_a_state_dict(tmp_path, marker, zipped, protocol):
    path = tmp_path / "model.pt"
    content = {"state_dict": {"w": torch.ones(2)}, "x": Plant(marker)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    with pytest.raises(MpdeployError, match=r"could run code: (posix|nt)\.system .*--trust"):
        open_source(path, Given(factory="net.py:Net"))
    path.write_bytes(pickle.dumps(Plant(marker), protocol))
    with pytest.raises(MpdeployError, match=r"could run code: (posix|nt)\.system"):
        open_source(path, Given())


def test_s1_pickled_modules_are_named_with_a_way_out(tmp_path, marker):
    class Trap(nn.Linear):
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    for content in (Trap(2, 2), {"model": Trap(2, 2), "epoch": 3}):
        torch.save(content, tmp_path / "model.pt")
        with pytest.raises(ModelError, match=r"system.*save its state_dict\(\) alone; or, if you know who made it"):
            open_source(tmp_path / "model.pt", Given(inputs=IMAGE))


def test_trust_is_what_makes_a_pickle_run(tmp_path):
    proof = tmp_path / "proof"
    torch.save({"model": nn.Linear(2, 2), "x": Plant(proof)}, tmp_path / "model.pt")
    loaded = open_source(tmp_path / "model.pt", Given(inputs=("x:batch,2",), trust=True))
    assert isinstance(loaded.module, nn.Linear)
    assert proof.exists()


def test_a_tensor_that_claims_more_than_the_file_holds(tmp_path):
    torch.save({"w": torch.ones(1).expand(1 << 40)}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"claims 4398046511104 bytes, the whole file has \d+"):
        open_source(tmp_path / "model.pt", Given())


def test_a_giant_bytearray_is_no_out_of_memory(tmp_path):
    class Giant:
        def __reduce__(self):
            return bytearray, (1 << 60,)

    torch.save({"w": torch.ones(2), "x": Giant()}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match="damaged"):
        open_source(tmp_path / "model.pt", Given())


def test_a_table_that_holds_itself(tmp_path):
    content = {"w": torch.ones(2)}
    content["again"] = content
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(UsageError, match="holds no weights"):
        open_source(tmp_path / "model.pt", Given())


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        (lambda: torch.ones(2, device="meta"), "no numbers"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "quantised"),
        (lambda: torch.ones(2).to_sparse(), r"layout torch\.sparse_coo"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_tensors_that_are_no_plain_numbers(tmp_path, tensor, says):
    torch.save({"w": tensor()}, tmp_path / "model.pt")
    with pytest.raises(UsageError, match=says):
        open_source(tmp_path / "model.pt", Given())


def test_what_trainers_note_beside_the_weights_is_left_out_unseen(tmp_path, marker):
    notes = {"best": np.float64(0.5), "seen": np.arange(3), "dir": Path("runs"), "w": torch.ones(2)}
    torch.save(notes, tmp_path / "model.pt")
    content = read_torch(tmp_path / "model.pt")
    assert {type(content[name]) for name in ("best", "seen", "dir")} == {Dropped}
    torch.save({**notes, "args": argparse.Namespace(lr=1), "x": np.array([Plant(marker)])}, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"run code: argparse\.Namespace, (posix|nt)\.system \[.*--trust"):
        open_source(tmp_path / "model.pt", Given())


def test_a_tar_of_torch_of_old(tmp_path, marker):
    with tarfile.open(tmp_path / "model.pt", "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            content = pickle.dumps(Plant(marker), 2)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    with pytest.raises(UsageError, match="not a torch file"):
        open_source(tmp_path / "model.pt", Given())


def test_names_in_a_file_do_not_steer_the_terminal(tmp_path, factory):
    torch.save({"\x1b[2Jw\n\u202e": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(UsageError) as caught:
        open_source(tmp_path / "model.pt", Given(factory=factory, inputs=IMAGE))
    assert str(caught.value).isprintable()


# --- TorchScript


class Saves(nn.Module):
    path: str

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self, x):
        torch.save(x, self.path)
        return x


class Maps(Saves):
    def forward(self, x):
        return x + torch.from_file(self.path, True, 4)


@pytest.mark.parametrize(("kind", "named"), [(Saves, r"torch\.save"), (Maps, r"torch\.from_file")])
def test_torchscript_that_writes_files(tmp_path, marker, kind, named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(kind(str(marker))).save(tmp_path / "model.pt")
    with pytest.raises(ModelError, match=f"asks for the operator {named}, which could reach outside"):
        open_source(tmp_path / "model.pt", Given(inputs=("x:batch,4",)))


def rewritten(path: Path, target: Path, change) -> Path:
    """Copy an archive; ``change(name, content)`` gives each entry's new content."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as out:
        for entry in source.infolist():
            out.writestr(entry.filename, change(entry.filename, source.read(entry)))
    return target


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("  x.save('MARKER')\n", "operator save"),
        ("  ops.aten.from_file('MARKER', True, 4)\n", r"ops\.aten\.from_file"),
        ("  ops.c10d.barrier()\n", r"ops\.c10d\.barrier"),
        ("  _1 = __torch__.torch.classes.rpc.Thing()\n", "native class"),
        ("  import os\n", "an import"),
    ],
)
def test_torchscript_code_is_read_before_it_is_loaded(tmp_path, marker, scripts, code, named):
    def change(name, content):
        if name.endswith(".py") and "code/__torch__" in name:
            lines = content.decode().splitlines(keepends=True)
            at = next((i for i, line in enumerate(lines) if "Tensor:" in line), None)
            if at is not None:
                lines.insert(at + 1, "  " + code.replace("MARKER", str(marker)))
            return "".join(lines)
        return content

    path = rewritten(scripts / "scripted.pt", tmp_path / "model.pt", change)
    with pytest.raises(ModelError, match=named):
        load_torchscript(path)


def test_a_pickle_in_a_torchscript_archive(tmp_path, marker, scripts):
    path = rewritten(
        scripts / "scripted.pt",
        tmp_path / "model.pt",
        lambda name, content: pickle.dumps(Plant(marker), 2) if name.endswith("constants.pkl") else content,
    )
    with pytest.raises(ModelError, match=r"Python object (posix|nt)\.system"):
        load_torchscript(path)


@pytest.mark.parametrize("name", ["scripted/code/__torch__/More.PY", "scripted/model.json", "scripted/src/evil.bin"])
def test_files_that_are_no_part_of_torchscript(tmp_path, marker, scripts, name):
    path = tmp_path / "model.pt"
    path.write_bytes((scripts / "scripted.pt").read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, f"torch.save(x, {str(marker)!r})")
    with pytest.raises(ModelError, match="which is no part of TorchScript"):
        open_source(path, Given(inputs=IMAGE))


def test_torchscript_that_claims_more_than_it_holds(tmp_path):
    module = nn.Linear(1, 1)
    module.register_buffer("giant", torch.ones(1).expand(1 << 44))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(tmp_path / "model.pt")
    with pytest.raises(UsageError, match="claims 70368744177664 bytes"):
        open_source(tmp_path / "model.pt", Given(inputs=("x:batch,1",)))


# --- torch.export programs


def saved(content) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def edited(content: bytes, edit) -> bytes:
    document = json.loads(content)
    edit(document)
    return json.dumps(document).encode()


def tampered(program, tmp_path, ending, change):
    return rewritten(
        program, tmp_path / "model.pt2", lambda name, content: change(content) if name.endswith(ending) else content
    )


MODEL = "models/model.json"


def traps(marker):
    call = f"__import__('os').system('touch {marker}')"
    graph = lambda d: d["graph_module"]["graph"]  # noqa: E731

    def size(d):
        for value in graph(d)["tensor_values"].values():
            for axis in value["sizes"]:
                if "as_expr" in axis:
                    axis["as_expr"]["expr_str"] = call

    def spec(d):
        inner = {"type": "collections.defaultdict", "context": "antigravity", "children_spec": []}
        d["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps([1, inner])

    def entry(d):
        next(iter(d["config"].values()))["use_pickle"] = True

    def hidden(d):
        values = graph(d)["tensor_values"]
        values["custom"] = values.pop("image")
        values["custom"]["sizes"][0]["as_expr"]["expr_str"] = call

    def renamed(d):
        graph(d)["nodes"][0]["outputs"][0]["as_tensor"]["name"] = f"a={call};b"

    return {
        "sample inputs": ("sample_inputs/model.pt", lambda c: saved((Plant(marker),)), r"pickle .* \w+\.system"),
        "a pickled weight": ("model_weights_config.json", lambda c: edited(c, entry), "pickled weights"),
        "a size": (MODEL, lambda c: edited(c, size), "the size .__import__"),
        "a call": (
            MODEL,
            lambda c: edited(c, lambda d: graph(d)["nodes"][0].update(target="torch.serialization.os.system")),
            r"the call 'torch\.serialization\.os\.system'",
        ),
        "an operator that writes": (
            MODEL,
            lambda c: edited(c, lambda d: graph(d)["nodes"][0].update(target="torch.ops.aten.from_file.default")),
            "the call",
        ),
        "a guard": (MODEL, lambda c: edited(c, lambda d: d.update(guards_code=[call])), "the guard"),
        "a name": (MODEL, lambda c: edited(c, renamed), "the name"),
        "a type": (MODEL, lambda c: edited(c, spec), "the type"),
        "a bare pickle": ("sample_inputs/model.pt", lambda c: pickle.dumps(Plant(marker), 2), "a pickle in"),
        "a pickle of old": ("sample_inputs/model.pt", lambda c: pickle.dumps(Plant(marker), 0), "a pickle in"),
        "a size under a free name": (MODEL, lambda c: edited(c, hidden), "the size"),
        "another encoding": (MODEL, lambda c: c.decode().encode("utf-16"), "the damaged"),
    }


@pytest.mark.parametrize("name", traps(Path("marker")))
def test_s2_a_program_that_would_run_code(tmp_path, marker, program, name):
    ending, change, named = traps(marker)[name]
    path = tampered(program, tmp_path, ending, change)
    with pytest.raises(ModelError, match=named + ".*which would run code"):
        load_program(path)


def test_torch_itself_falls_into_such_a_trap(tmp_path, program):
    """Why all this is needed: if torch stops to evaluate sizes, the checks may become simpler."""
    proof = tmp_path / "proof"
    path = tampered(program, tmp_path, *traps(proof)["a size"][:2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception):  # noqa: B017, PT011 - how it fails afterwards is torch's business
            torch.export.load(path)
    assert proof.exists()


@pytest.mark.parametrize(
    "name",
    [
        "net/data/aotinductor/model/model.so",  # a library
        "net/data/constants/custom_obj_0",  # a native object
        "net/data/constants/opaque_obj_0",  # a pickle
        "serialized_state_dict.pt",  # the older format, which torch falls back to
        "net/anything",
    ],
)
def test_files_that_are_no_part_of_a_program(tmp_path, marker, program, name):
    path = tmp_path / "model.pt2"
    path.write_bytes(program.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, pickle.dumps(Plant(marker)))
    with pytest.raises(ModelError, match="which is no part of a program"):
        load_program(path)


def test_a_pickle_in_the_place_of_weights(tmp_path, marker, program):
    path = tmp_path / "model.pt2"
    path.write_bytes(program.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("net/data/weights/model.pt", pickle.dumps(Plant(marker), 2))  # where older ones kept them
    with pytest.raises(ModelError, match=r"a pickle in 'net/data/weights/model\.pt'"):
        load_program(path)


def test_sample_inputs_that_claim_more_than_the_program_holds(tmp_path, program):
    giant = saved(((torch.ones(1).expand(1 << 40),), {}))
    path = tampered(program, tmp_path, "sample_inputs/model.pt", lambda content: giant)
    with pytest.raises(UsageError, match="claims 4398046511104 bytes"):
        load_program(path)


def test_programs_of_an_older_torch_are_told_so(tmp_path):
    with zipfile.ZipFile(tmp_path / "old.pt2", "w") as archive:
        archive.writestr("serialized_exported_program.json", "{}")
    with pytest.raises(UsageError, match=r"torch before 2\.8"):
        open_source(tmp_path / "old.pt2", Given())


def test_what_sizes_guards_and_calls_may_say():
    for text in (
        "Symbol('s77', positive=True, integer=True)",
        "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-1))",
        "FloorDiv(Symbol('s0'), 2)",
        "s0 + 1",
    ):
        assert is_arithmetic(text), text
    for text in (
        "Symbol('s0').free_symbols",
        "Add('__import__(\"os\")', 1)",
        "Integer('1')",
        "().__class__",
        "[x for x in (1,)]",
        "lambda: 1",
        "__import__",
        "open('x')",
        "9**9**9**9",
        "Pow(Integer(9), Pow(Integer(9), Integer(99)))",
        "1 << 9999999999",
        "Symbol('s0\\n')",
        "",
    ):
        assert not is_arithmetic(text), text
    assert is_guard("L['x'].size()[0] >= 2 and L['x'].size()[1] % 8 == 0")
    assert not is_guard("L['x'].__class__")
    assert not is_guard("print(L)")
    for target in ("torch.ops.aten.add.Tensor", "_operator.mul", "torch.sym_max", "torch.ops.higher_order.cond"):
        assert may_target(target), target
    for target in (
        "torch.load", "torch.hub.load", "torch.ops.aten.__class__.x", "_operator.attrgetter", "_operatorx.mul",
        "torch.ops.c10d.barrier.default", "torch.ops.load_library", "math.__loader__", "os.system", "#ext:x",
    ):  # fmt: skip
        assert not may_target(target), target


# --- the user's own code


def test_code_beside_a_model_is_not_imported(tmp_path, marker, monkeypatch, net):
    monkeypatch.chdir(tmp_path)
    for name in ("net.py", "model.py", "sitecustomize.py"):
        Path(name).write_text(f"open({str(marker)!r}, 'w')\n")
    torch.save(net.state_dict(), "model.pt")
    with pytest.raises(UsageError, match="not the model they belong to"):
        open_source(Path("model.pt"), Given())
