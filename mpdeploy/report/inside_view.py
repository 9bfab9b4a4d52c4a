"""What a report says of the inside of a candidate: drift along the network, culprits, repair, noise."""

from dataclasses import dataclass

from mpdeploy.report import words
from mpdeploy.report.depth import Depth, depth_picture
from mpdeploy.verification.blame import Blame, Culprit, Kind
from mpdeploy.verification.record import DriftReport

KINDS = {
    Kind.OVERFLOW: "overflows",
    Kind.BROKE: "breaks",
    Kind.DECIDED: "decides differently",
    Kind.DRIFT: "adds error",
}


@dataclass(frozen=True)
class CulpritRow:
    """A node to blame: how, its name and operator, format, evidence, the plan's code and reason."""

    kind: str
    severe: bool
    node: str
    op: str
    format: str
    text: str
    code: str
    reason: str


@dataclass(frozen=True)
class Inside:
    """One candidate's inside: the picture, the culprits, remarks, and the repair in words."""

    depth: Depth | None
    culprits: tuple[CulpritRow, ...]
    remarks: tuple[str, ...]
    repair: str
    command: str
    repaired: bool


def inside_view(drift: DriftReport) -> Inside | None:
    """Return what to show of a candidate's inside; None if nobody looked."""
    blame = drift.blame
    if blame is None:
        return None
    repair = blame.repair
    return Inside(
        depth=depth_picture(blame.layers),
        culprits=tuple(_row(culprit) for culprit in blame.culprits),
        remarks=tuple(_remarks(blame)),
        repair=repair_text(blame),
        command=repair.command if repair else "",
        repaired=repair.passed if repair else False,
    )


def repair_text(blame: Blame) -> str:
    """Return in a sentence what came of the repair; empty if none was tried."""
    repair = blame.repair
    if repair is None:
        return ""
    kept = f"{words.count(len(repair.nodes), 'node')} in FP32 ({repair.low} of {repair.operators} operators stay low)"
    tried = f"{words.count(repair.rounds, 'conversion')} tried"
    if repair.passed:
        return f"Keeping {kept} brings it within budget: norm-relative error {words.error(repair.error)}; {tried}."
    return f"Keeping {kept} does not bring it within budget: norm-relative error {words.error(repair.error)}; {tried}."


def noise_text(drift: DriftReport) -> str:
    """Return the reference's own noise in a sentence: the largest of all outputs for each way to run it."""
    ways: dict[str, float] = {}
    for noise in drift.noise:
        ways[noise.way] = max(ways.get(noise.way, 0.0), noise.size)
    return ", ".join(f"{words.error(size)} ({way})" for way, size in ways.items())


def _row(culprit: Culprit) -> CulpritRow:
    return CulpritRow(
        kind=KINDS[culprit.kind],
        severe=culprit.kind is not Kind.DRIFT,
        node=culprit.node,
        op=culprit.op,
        format=culprit.format.upper(),
        text=culprit.text,
        code=culprit.code,
        reason=culprit.reason.removeprefix(f"{culprit.code} "),
    )


def _remarks(blame: Blame) -> list[str]:
    remarks = []
    if blame.first_broken:
        remarks.append(f"NaN or infinity came up first at '{blame.first_broken}'.")
    if blame.unpaired:
        remarks.append(f"{words.count(blame.unpaired, 'value')} of the reference have no partner in the candidate.")
    if blame.hidden:
        unseen = f"{words.count(blame.hidden, 'value')} inside branches and loops"
        remarks.append(f"{unseen}: not measured, for want of data that lead there or of a shape that stays.")
    return remarks
