"""``mpdeploy.toml``: what a project always asks of its candidates."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mpdeploy.documents import read_toml
from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import Budget, parse_budget
from mpdeploy.numerics.formats import Format

FILE_NAME = "mpdeploy.toml"
_FORMATS = {f.value: f for f in (Format.FP32, Format.FP16, Format.BF16)}
_KEYS = frozenset({"budget", "tasks", "metrics", "baseline", *_FORMATS})


@dataclass(frozen=True)
class Settings:
    """The table ``[verify]``: budgets, for all candidates and by format, tasks, metrics, the baseline's path.

    Tasks, metrics and paths are written as their flags are; paths are relative to the file, which is ``path``.
    """

    budget: Budget | None = None
    by_format: dict[Format, Budget] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    baseline: Path | None = None
    path: Path | None = None

    def budget_for(self, candidate: Format) -> Budget | None:
        """Return the budget for a candidate's coarsest format; None if the file sets none."""
        return self.by_format.get(candidate, self.budget)


def choose_settings(
    named: Path | None, *, tasks: tuple[str, ...], metrics: tuple[str, ...], baseline: Path | None = None
) -> Settings:
    """Return the settings of the file that was named, or else of the current folder's, under what flags say.

    A file that nobody named may neither run code nor have read what lies outside its folder: ``UsageError`` if it names
    metrics or such a baseline, and no flag says another.
    """
    found = find_settings(Path()) if named is None else load_settings(named)
    if named is None and found.path is not None:
        _require_harmless(found.path, () if metrics else found.metrics, None if baseline else found.baseline)
    return replace(
        found,
        tasks=tasks or found.tasks,
        metrics=metrics or found.metrics,
        baseline=found.baseline if baseline is None else baseline,
    )


def _require_harmless(path: Path, metrics: tuple[str, ...], baseline: Path | None) -> None:
    remedy = f"if you trust it, say --settings {path}"
    if metrics:
        raise UsageError(
            f"the file names code to run, {metrics[0]}, and you did not name the file",
            where=str(path),
            remedy=f"{remedy}, or name the code with --metric",
        )
    if baseline is not None and not baseline.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(
            f"the file names a baseline outside its folder, {baseline}, and you did not name the file",
            where=str(path),
            remedy=f"{remedy}, or name the baseline with --baseline",
        )


def find_settings(folder: Path) -> Settings:
    """Return the settings of the ``mpdeploy.toml`` in a folder; empty ones if there is none."""
    path = folder / FILE_NAME
    return load_settings(path) if path.is_file() else Settings()


def load_settings(path: Path) -> Settings:
    """Return the settings in a file; ``UsageError`` if it is no TOML, or asks for something unknown."""
    document, _ = read_toml(path, "settings file")
    table = document.get("verify", {})
    if not isinstance(table, dict):
        raise UsageError("'verify' is not a table", where=str(path), remedy="write [verify]")
    unknown = sorted(set(table) - _KEYS)
    if unknown:
        raise UsageError(
            f"[verify] has no setting '{unknown[0]}'", where=str(path), remedy=f"use {', '.join(sorted(_KEYS))}"
        )
    budgets = {}
    for name, target in _FORMATS.items():
        if name in table:
            inner = table[name]
            if not isinstance(inner, dict) or set(inner) != {"budget"}:
                raise UsageError(f"[verify.{name}] takes a budget and nothing else", where=str(path))
            budgets[target] = _budget(inner["budget"], path)
    baseline = table.get("baseline")
    return Settings(
        budget=_budget(table["budget"], path) if "budget" in table else None,
        by_format=budgets,
        tasks=_texts(table, "tasks", path),
        metrics=tuple(str(path.parent / metric) for metric in _texts(table, "metrics", path)),
        baseline=path.parent / str(baseline) if baseline is not None else None,
        path=path,
    )


def _budget(value: Any, path: Path) -> Budget:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError("a budget is a string or a list of strings", where=str(path), remedy='write "cosine>=0.999"')
    return parse_budget(",".join(texts), origin=f"from {path.name}")


def _texts(table: dict[str, Any], key: str, path: Path) -> tuple[str, ...]:
    value = table.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UsageError(f"'{key}' is not a list of strings", where=str(path))
    return tuple(value)
