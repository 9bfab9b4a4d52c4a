"""The direction of imports: a room may import from the rooms below it, never from above."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "mpdeploy"

GROUND = {
    "archive",
    "documents",
    "errors",
    "exchange",
    "files",
    "locks",
    "memory",
    "processes",
    "records",
    "scratch",
    "texts",
}
GRAPH_SIDE = [
    "numerics",
    "arguments",
    "graph",
    "runtime",
    "plan",
    "conversion",
    "verification",
    "searching",
    "engine",
    "report",
    "bundle",
]
MAY_IMPORT = {room: GROUND | set(GRAPH_SIDE[: i + 1]) for i, room in enumerate(GRAPH_SIDE)}
MAY_IMPORT["amp"] = GROUND | {"numerics", "amp"}
MAY_IMPORT["train"] = GROUND | {"numerics", "amp", "train"}
MAY_IMPORT["source"] = GROUND | set(GRAPH_SIDE) | {"amp", "train", "source"}
MAY_IMPORT["pipeline"] = MAY_IMPORT["source"] | {"session", "pipeline"}
MAY_IMPORT["session"] = MAY_IMPORT["source"] | {"session"}
MAY_IMPORT["api"] = MAY_IMPORT["pipeline"] | {"api"}
MAY_IMPORT["cli"] = MAY_IMPORT["api"] | {"cli"}

# Heavy or optional libraries, and the rooms that may know them.
HOMES = {
    "torch": {"amp", "train", "source", "runtime", "engine", "session", "api", "cli"},
    "onnx": {"graph", "source"},
    "onnx_ir": {"graph", "plan", "conversion", "runtime", "searching", "source"},
    "onnxruntime": {"runtime"},
    "openvino": {"runtime"},
    "tensorrt": {"engine", "runtime"},
    "tensorrt_rtx": {"engine", "runtime"},
    "cryptography": {"bundle"},
    "tritonclient": {"bundle"},
    "filelock": {"engine", "bundle", "locks"},
    "jinja2": {"report"},
    "transformers": {"source"},
    "rich": {"cli", "report"},
    "click": {"cli"},
    "scipy": {"plan", "numerics", "verification"},
}


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_go_down_only():
    breaches = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(path)
        if room in GROUND | {"__init__", "__main__"}:
            continue
        for name in imports(path):
            first, _, rest = name.partition(".")
            if first == "mpdeploy" and rest and rest.split(".")[0] not in MAY_IMPORT[room]:
                breaches.append(f"{path.relative_to(PACKAGE)} imports {name}")
            if first in HOMES and room not in HOMES[first]:
                breaches.append(f"{path.relative_to(PACKAGE)} imports {name}, at home in {sorted(HOMES[first])}")
    assert breaches == []


def test_the_ground_imports_only_itself():
    for room in GROUND:
        for name in imports(PACKAGE / f"{room}.py"):
            if name.startswith("mpdeploy."):
                assert name.split(".")[1] in GROUND


def test_files_are_small():
    sizes = {p: p.stat().st_size for p in PACKAGE.rglob("*.py")}
    assert {p: s for p, s in sizes.items() if s > 20_000} == {}


def test_a_formats_numbers_have_one_home():
    for path in PACKAGE.rglob("*.py"):
        if path.name != "formats.py":
            assert "65504" not in path.read_text(), path
