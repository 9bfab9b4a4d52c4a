"""The texts in a torch.export program, judged before torch makes Python of them.

torch evaluates symbolic sizes with sympy, which uses ``eval``; executes guards; looks up the targets of nodes
anywhere in torch; imports the modules of nested inputs' types; and writes Python source with the names of nodes in
it.  So sizes must be arithmetic, guards comparisons of sizes, targets operators that compute, types plain containers,
and names names.
"""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from mpdeploy.source.operators import may_target

_CALLS = frozenset(
    "Symbol Integer Rational Float Add Mul Pow Mod Max Min Abs Eq Ne Lt Le Gt Ge Equality Unequality LessThan "
    "StrictLessThan GreaterThan StrictGreaterThan And Or Not floor ceiling Piecewise ExprCondPair "
    "FloorDiv ModularIndexing PythonMod CleanDiv CeilDiv CeilToInt FloorToInt IntTrueDiv FloatTrueDiv ToFloat "
    "TruncToInt TruncToFloat RoundToInt RoundDecimal Where Identity PowByNatural FloatPow LShift RShift "
    "OpaqueUnaryFn_sqrt BitwiseFn_bitwise_and BitwiseFn_bitwise_or".split()
)
_EXPONENT = 64
_TEXTUAL = frozenset({"Symbol", "Float"})  # these take text and do not evaluate it
_TREES = frozenset({"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None})
_SYMBOL = re.compile(r"[a-z]\d+")
_NAME = re.compile(r"[\w.\-/]*")
_OPTION = re.compile(r"[^\x00-\x1f\\]*")  # an operator's option or message; torch quotes it
_GUARDED = frozenset({"size", "dim", "ndim", "shape", "stride", "storage_offset", "numel"})
_GUARD_NODES = (
    ast.Expression, ast.Compare, ast.cmpop, ast.BoolOp, ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop,
    ast.Constant, ast.Subscript, ast.expr_context, ast.Call,
)  # fmt: skip
# Where a node came from, for people to read; torch keeps it as text.
_FREE = frozenset({"stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "from_node", "custom"})


def faults_in(content: bytes, name: str) -> Iterator[str]:
    """Yield what a JSON file of a program says that torch must not get to see, in words."""
    try:
        document = json.loads(content.decode("utf-8"))  # as torch reads it
    except (ValueError, RecursionError):
        yield f"the damaged {name!r}"
        return
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        key, value = pending.pop()
        if key in _FREE and isinstance(value, str):
            continue  # a table of that name is one of tensors, say, and is looked into
        if isinstance(value, dict):
            pending += value.items()
            yield from (f"the name {word[:80]!r}" for word in value if not _NAME.fullmatch(word))
        elif isinstance(value, list):
            pending += ((key, item) for item in value)
        elif isinstance(value, str) and not _sound(key, value):
            yield f"the {_WORDS.get(key, 'name')} {value[:80]!r}"
        elif key == "use_pickle" and value:
            yield "pickled weights"


_WORDS = {"target": "call", "expr_str": "size", "guards_code": "guard", "in_spec": "type", "out_spec": "type"}


def _sound(key: str, text: str) -> bool:
    if key == "target":
        return may_target(text)
    if key == "expr_str":
        return is_arithmetic(text)
    if key == "guards_code":
        return is_guard(text)
    if key in ("in_spec", "out_spec"):
        return _is_tree(text)
    if key == "path_name":
        return re.fullmatch(r"(?:weight|tensor)_\d+", text) is not None
    return (_OPTION if key in ("as_string", "as_strings", "torch_version") else _NAME).fullmatch(text) is not None


def is_arithmetic(text: str) -> bool:
    """Tell whether the text of a symbolic size is arithmetic on symbols and numbers and nothing else."""
    tree = _parsed(text)
    return tree is not None and _computes(tree.body)


def _computes(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.Name):
        return _SYMBOL.fullmatch(node.id) is not None or node.id in ("int_oo", "oo", "true", "false")
    if isinstance(node, ast.UnaryOp):
        return _computes(node.operand)
    if isinstance(node, ast.BinOp):
        # A power of powers would take for ever.
        small = not isinstance(node.op, (ast.Pow, ast.LShift)) or _is_small(node.right)
        return small and _computes(node.left) and _computes(node.right)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in _CALLS:
        return False
    if node.func.id in ("Pow", "PowByNatural", "FloatPow", "LShift") and not _is_small(node.args[-1:]):
        return False
    textual = node.func.id in _TEXTUAL
    return all(_computes(k.value) or (textual and _is_word(k.value)) for k in node.keywords) and all(
        _computes(a) or (textual and _is_word(a)) for a in node.args
    )


def _is_small(node: ast.AST | list[ast.expr]) -> bool:
    """A literal exponent, also inside Integer(…), that leaves a number which fits in memory."""
    if isinstance(node, list):
        return len(node) == 1 and _is_small(node[0])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Integer", "Rational"):
        return all(_is_small(argument) for argument in node.args)
    if isinstance(node, ast.UnaryOp):
        return _is_small(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and abs(node.value) <= _EXPONENT


def _is_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and re.fullmatch(r"[\w.+-]+", str(node.value)) is not None


def is_guard(text: str) -> bool:
    """Tell whether the text of a guard compares sizes of inputs and nothing else."""
    tree = _parsed(text)
    return tree is not None and all(_guards(node) for node in ast.walk(tree))


def _guards(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in ("L", "args", "kwargs")
    if isinstance(node, ast.Attribute):
        return node.attr in _GUARDED
    return isinstance(node, _GUARD_NODES)


def _parsed(text: str) -> ast.Expression | None:
    try:
        return ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _is_tree(text: str) -> bool:
    try:
        pending = [json.loads(text)] if text else []
    except (ValueError, RecursionError):
        return False
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if value.get("type") not in _TREES or "__enum__" in str(value.get("context")):
                return False
            pending += value.values()
        elif isinstance(value, list):
            pending += value
    return True
