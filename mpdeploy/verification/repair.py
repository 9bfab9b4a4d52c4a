"""A list of nodes to keep in FP32 that brings a candidate back within its budget, found by trying."""

import contextlib
import glob
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpdeploy import records
from mpdeploy.conversion.api import convert, plan_path_of
from mpdeploy.errors import MpdeployError
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.feeds import Feeds, open_feeds
from mpdeploy.verification.blame import CULPRITS, Blame, Culprit, Repair, culprits_of, upstream
from mpdeploy.verification.layers import Layer
from mpdeploy.verification.shorten import as_candidate, shortened, with_kept

ROUNDS = 6
_FEEDS, _BYTES = 32, 32 << 20
_GROWTH = 4  # so many times as many culprits are asked for in each round


@dataclass(frozen=True)
class Recipe:
    """How the candidate was converted, or would be: the source, and the flags of `mpdeploy convert`."""

    source: Path
    precision: str
    policy: str | None = None
    data: Feeds | None = None
    low_io: bool = False
    keep: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    target: str | None = None
    timeout: float | None = None

    def command(self, nodes: Sequence[str]) -> str:
        """Return the command line that converts so and keeps these nodes in FP32, too."""
        words = ["mpdeploy", "convert", str(self.source), "-o", "repaired.onnx", "--precision", self.precision]
        words += ["--policy", self.policy] if self.policy else []
        words += ["--data", self.data.name] if self.data else []
        words += ["--low-io"] if self.low_io else []
        words += ["--target", self.target] if self.target else []
        words += ["--timeout", f"{self.timeout:g}"] if self.timeout else []
        for operator in self.operators:
            words += ["--op-fp32", operator]
        for pattern in (*self.keep, *map(glob.escape, nodes)):
            words += ["--keep-fp32", pattern]
        return shlex.join(words)

    def convert(self, output: Path, nodes: Sequence[str]) -> PrecisionPlan:
        """Convert to ``output``, keeping these nodes in FP32, too, and return the plan."""
        convert(
            self.source,
            output,
            precision=self.precision,
            policy=self.policy,
            data=self.data,
            low_io=self.low_io,
            target=self.target,
            timeout=self.timeout,
            op_fp32=self.operators,
            keep_fp32=(*self.keep, *map(glob.escape, nodes)),
        )
        return records.load(PrecisionPlan, plan_path_of(output))

    def carry_out(self, plan: PrecisionPlan, output: Path) -> None:
        """Convert to ``output`` by a plan."""
        where = output.with_suffix(".trial.json")
        records.save(plan, where)
        convert(self.source, output, precision=self.precision, plan=where, timeout=self.timeout)


@dataclass(frozen=True)
class Trial:
    """What verifying a trial conversion came to: within budget, the largest norm-relative error, who is to blame."""

    passed: bool
    error: float | None
    blame: Callable[[], Blame]


def recipe_of(
    source: Path,
    precision: str,
    plan: PrecisionPlan | None,
    feeds: Feeds,
    operators: set[str],
    timeout: float | None = None,
) -> Recipe:
    """Return how a candidate came about by its plan; without one, a conversion with the defaults.

    That measures ranges on the feeds, if they are a few files: without any data most operators would stay FP32.
    ``operators`` are the operator types of the source: a plan lists nodes and types that were kept side by side.
    """
    if plan is None:
        return Recipe(source, precision, data=feeds if _small(feeds) else None, timeout=timeout)
    data = None
    if plan.data is not None:
        data = feeds if feeds.name == plan.data.name else None
        if data is None:
            with contextlib.suppress(MpdeployError):  # the data of old are gone: plan without
                data = open_feeds(plan.data.name)
    return Recipe(
        source=source,
        precision=precision,
        policy=plan.policy or None,
        data=data,
        low_io=plan.low_io,
        target=plan.target if plan.target != "any" else None,
        keep=tuple(k for k in plan.keep if k not in operators),
        operators=tuple(k for k in plan.keep if k in operators),
        timeout=timeout,
    )


def _small(feeds: Feeds) -> bool:
    """Whether feeds are files that a conversion may well run on, several times over."""
    path = Path(feeds.name)
    files = list(path.glob("*.npz")) if path.is_dir() else [path]
    return all(f.is_file() for f in files) and len(files) <= _FEEDS and sum(f.stat().st_size for f in files) <= _BYTES


def find_repair(
    recipe: Recipe, blame: Blame, examine: Callable[[Path], Trial], passes: Callable[[Path], bool]
) -> Repair | None:
    """Return the nodes to keep in FP32, found by converting, verifying and blaming again until the budget holds.

    A list that works is then shortened (see ``mpdeploy.verification.shorten``), as long as ``passes`` says that a
    conversion is good enough, and examined once more.  None if there is nobody to blame.  If
    ``ROUNDS`` do not suffice, or most operators would be in FP32, the last attempt comes back as not passed.
    """
    with tempfile.TemporaryDirectory(prefix="mpdeploy-") as folder:
        output = Path(folder) / "repaired.onnx"
        default = recipe.convert(output, ())
        found = _grown(recipe, blame, examine, output, _keepable(default))
        if found is None or not found.passed or len(found.nodes) < 2:
            return found
        plan = as_candidate(default, blame.layers)

        def works(nodes: Sequence[str]) -> bool:
            try:
                recipe.carry_out(with_kept(plan, nodes), output)
            except MpdeployError:  # formats that a plan cannot have, though the candidate has them
                return False
            return passes(output)

        nodes, runs = shortened(found.nodes, works)
        if nodes == found.nodes:
            return replace(found, rounds=found.rounds + runs)
        shorter = _tried(recipe, nodes, examine, output)[0]
        best = shorter if shorter.passed else found
        return replace(best, rounds=found.rounds + runs + 1)


def _grown(
    recipe: Recipe, blame: Blame, examine: Callable[[Path], Trial], output: Path, known: set[str]
) -> Repair | None:
    repair: Repair | None = None
    keep: dict[str, None] = {}
    for number in range(1, ROUNDS + 1):
        fresh = [node for node in _next(blame, keep, CULPRITS * _GROWTH ** (number - 1)) if node in known]
        if not fresh:
            return repair
        keep.update(dict.fromkeys(fresh))
        repair, trial = _tried(recipe, tuple(keep), examine, output)
        repair = replace(repair, rounds=number)
        if trial.passed or 2 * repair.low < repair.operators:
            return repair
        if number < ROUNDS:
            blame = trial.blame()
    return repair


def _tried(
    recipe: Recipe, nodes: tuple[str, ...], examine: Callable[[Path], Trial], output: Path
) -> tuple[Repair, Trial]:
    plan = recipe.convert(output, nodes)
    trial = examine(output)
    repair = Repair(
        nodes=nodes,
        command=recipe.command(nodes),
        passed=trial.passed,
        error=trial.error,
        low=plan.low_count,
        operators=len(plan.decisions),
        rounds=1,
    )
    return repair, trial


def _next(blame: Blame, keep: dict[str, None], limit: int) -> list[str]:
    """What to keep next: what the culprits name, or, if that is kept already, ever more of what they read."""
    culprits = culprits_of(blame.layers, None, limit)
    fresh = [node for culprit in culprits for node in culprit.keep if node not in keep]
    if fresh:
        return list(dict.fromkeys(fresh))
    by_partner = {layer.partner: layer for layer in blame.layers}
    frontier = [layer for layer in blame.layers if _is_named(layer, culprits)]
    seen: set[str] = set()
    while frontier:
        fresh = [node for node in upstream(frontier, by_partner) if node not in keep]
        if fresh:
            return list(dict.fromkeys(fresh))
        sources = dict.fromkeys(_unseen(frontier, seen))
        frontier = [by_partner[source] for source in sources if source in by_partner]
    return []


def _unseen(layers: Sequence[Layer], seen: set[str]) -> Iterator[str]:
    for layer in layers:
        for source in layer.sources:
            if source not in seen:
                seen.add(source)
                yield source


def _is_named(layer: Layer, culprits: Sequence[Culprit]) -> bool:
    return any(layer.value == culprit.value for culprit in culprits)


def _keepable(plan: PrecisionPlan) -> set[str]:
    names = {decision.node for decision in plan.decisions}
    return names | {name.rpartition(":")[0] for name in names if ":" in name}
