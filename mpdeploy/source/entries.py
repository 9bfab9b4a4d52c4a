"""Which entries of a file hold weights, and which of them are meant: raw or averaged, under whatever name."""

import re
from collections.abc import Mapping
from typing import Any

from mpdeploy.errors import UsageError

EMA, MODEL = "ema", "model"  # words for --weights; any other word is the name of an entry

_AVERAGE = re.compile(r"(^|[_.])(ema|swa|averaged?|avg)([_.]|$)|_ema$|^ema", re.IGNORECASE)
_USUAL = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "weights", "params")
_NO_WEIGHTS = re.compile(r"optim|sched|scaler|callback|loop|hyper|config|args|ema_decay", re.IGNORECASE)

Table = dict[str, Any]
"""Tensors by name, as in a state dict."""


def tables_in(content: object, tensor: type) -> dict[str, Table]:
    """Return all tables of tensors in what a file holds, by the name of their entry.

    Args:
        content: The file's content, as nested dictionaries.
        tensor: What counts as a tensor in it.

    Returns:
        The tables; the file itself is ``model`` or ``ema``.
    """
    whole = _as_table(content, tensor)
    if whole is not None:
        return {EMA if "n_averaged" in whole else MODEL: _without_counter(whole)}
    found: dict[str, Table] = {}
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str) or _NO_WEIGHTS.search(key):
                continue
            table = _as_table(value, tensor)
            if table is None and isinstance(value, Mapping):
                inner = [t for t in (_as_table(v, tensor) for v in value.values()) if t is not None]
                table = inner[0] if len(inner) == 1 else None
            if table is not None:
                found[key] = _without_counter(table)
    return found


def is_average(name: str) -> bool:
    """Tell whether an entry of that name holds averaged weights."""
    return bool(_AVERAGE.search(name))


def choose(names: tuple[str, ...], choice: str | None, where: str) -> str:
    """Return which of the entries, all of them weights or models, ``choice`` means; of which there are some.

    ``choice`` is ``ema``, ``model``, or the name of an entry.  Raises ``UsageError`` if the chosen ones are not there,
    or several are and none was chosen.
    """
    averages = tuple(name for name in names if _AVERAGE.search(name))
    raw = tuple(name for name in names if name not in averages)
    if choice is None and averages and raw:
        raise UsageError(
            f"it holds both raw weights and their average: {_listed(names)}",
            where=where,
            remedy="choose with --weights ema or --weights model",
        )
    among = {None: names, EMA: averages, MODEL: raw}.get(choice, tuple(n for n in names if n == choice))
    if not among:
        raise UsageError(
            f"there are no weights `{choice}` in it", where=where, remedy=f"it holds {_listed(names)}: choose one"
        )
    usual = [name for name in _USUAL if name in among]
    if len(among) > 1 and not usual:
        raise UsageError(
            f"it holds several sets of weights: {_listed(among)}", where=where, remedy="choose with --weights NAME"
        )
    return usual[0] if len(among) > 1 else among[0]


def _as_table(value: object, tensor: type) -> Table | None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        return None
    tensors = {key: v for key, v in value.items() if isinstance(v, tensor)}
    # Modules may add plain state of their own under `…_extra_state`.
    others = [key for key in value if key not in tensors and not key.endswith("_extra_state")]
    return tensors if tensors and not others else None


def _without_counter(table: Table) -> Table:
    return {key: tensor for key, tensor in table.items() if key != "n_averaged"}


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names[:6])
