"""The report as a Markdown summary for a pull request."""

from collections.abc import Iterator

from mpdeploy.report import words
from mpdeploy.report.inside_view import noise_text, repair_text
from mpdeploy.report.record import Report
from mpdeploy.report.view import Candidate, metric_text, view_of
from mpdeploy.texts import one_line

_REASONS, _CULPRITS = 10, 5
# As entities where there are some: a backslash ahead of a link's colon would not keep it from becoming one.
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "/": "&#47;", "@": "&#64;"}
_HARMLESS = str.maketrans({**{sign: f"\\{sign}" for sign in "\\`*_[]()|#~$!"}, **_ENTITIES})


def markdown(report: Report) -> str:
    """Return the summary: verdict, a line for each limit, reasons, and, if known, the nodes to blame."""
    view = view_of(report)
    lines = [f"### {'✅' if report.passed else '❌'} {_plain(view.headline)}", "", f"{_plain(report.title)}", ""]
    for candidate in view.candidates:
        lines += _candidate(candidate)
    return "\n".join(lines).rstrip() + "\n"


def _candidate(c: Candidate) -> Iterator[str]:
    drift = c.drift
    mark = "✅" if drift.verdict.passed else "❌"
    yield f"**{mark} {_code(c.name)}** · {c.format} · {c.samples} · {c.size} ({c.smaller} of the reference)"
    yield ""
    if drift.verdict.checks or drift.verdict.score_checks:
        yield "| | Output | Metric | Measured | Limit |"
        yield "|---|---|---|---|---|"
        for check in drift.verdict.checks:
            metric = check.limit.metric
            cells = _code(check.output), metric.value, metric_text(metric, check.measured), _limit(str(check.limit))
            yield f"| {_mark(check.holds)} | {' | '.join(cells)} |"
        for score in drift.verdict.score_checks:
            cells = "", _plain(score.limit.score), words.error(score.measured), _limit(str(score.limit))
            yield f"| {_mark(score.holds)} | {' | '.join(cells)} |"
        yield ""
    if drift.verdict.reasons:
        for reason in drift.verdict.reasons[:_REASONS]:
            yield f"- `{reason.code}` {_plain(reason.text)}"
        if len(drift.verdict.reasons) > _REASONS:
            yield f"- and {len(drift.verdict.reasons) - _REASONS} more"
        yield ""
    blame = drift.blame
    if blame is not None and not drift.verdict.passed:
        for culprit in blame.culprits[:_CULPRITS]:
            yield f"- {_code(culprit.node)} {_plain(culprit.text)}"
        if blame.repair is not None:
            yield ""
            yield _plain(repair_text(blame))
            yield ""
            yield "```\n" + one_line(blame.repair.command).replace("`", "'") + "\n```"
        yield ""
    if noise := noise_text(drift):
        ran = _plain(drift.candidate_run.runtime)
        yield f"<sub>The reference's own noise, norm-relative: {noise}. The candidate ran in {ran}.</sub>"
        yield ""


def _mark(holds: bool) -> str:
    return "✅" if holds else "❌"


def _limit(text: str) -> str:
    return _code(text.rpartition(":")[2])


def _code(text: str) -> str:
    """The text as code in a table cell: no pipe, no backquote, one line."""
    return "`" + one_line(" ".join(text.split())).replace("`", "'").replace("|", "¦") + "`"


def _plain(text: str) -> str:
    """The text with Markdown's and HTML's own characters made harmless."""
    return one_line(" ".join(text.split())).translate(_HARMLESS)
