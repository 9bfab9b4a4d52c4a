"""The report as JUnit XML, which every CI server shows: one suite a candidate, one case a limit."""

import re
from collections.abc import Iterator
from xml.sax.saxutils import escape, quoteattr

from mpdeploy.numerics.judging import Reason
from mpdeploy.report.record import Report
from mpdeploy.verification.record import DriftReport

_FORBIDDEN = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def junit(report: Report) -> str:
    """Return the XML document."""
    suites = [_suite(drift) for drift in report.drifts]
    return '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n' + "".join(suites) + "</testsuites>\n"


def _suite(drift: DriftReport) -> str:
    cases = list(_cases(drift))
    failed = sum(bool(reasons) for _, reasons in cases)
    name = quoteattr(_legal(drift.candidate.path))
    head = f'  <testsuite name={name} tests="{len(cases)}" failures="{failed}" errors="0" skipped="0"'
    lines = [f'{head} time="{drift.seconds}" timestamp="{drift.created[:19]}">\n']
    for case, reasons in cases:
        lines.append(f'    <testcase classname={name} name={quoteattr(case)} time="0"')
        if reasons:
            text = "\n".join(f"{r.code}: {r.text}" for r in reasons)
            message, kind = quoteattr(_legal(reasons[0].text)), quoteattr(reasons[0].code)
            lines.append(f">\n      <failure message={message} type={kind}>{escape(_legal(text))}</failure>\n")
            lines.append("    </testcase>\n")
        else:
            lines.append("/>\n")
    return "".join([*lines, "  </testsuite>\n"])


def _cases(drift: DriftReport) -> Iterator[tuple[str, list[Reason]]]:
    """Each limit with the reasons that break it, then all other reasons as one case for each code and output."""
    left = list(drift.verdict.reasons)
    names = [f"{check.output}: {check.limit}" for check in drift.verdict.checks]
    keys = [(check.output, str(check.limit)) for check in drift.verdict.checks]
    names += [str(check.limit) for check in drift.verdict.score_checks]
    keys += [("", str(check.limit)) for check in drift.verdict.score_checks]
    for name, (output, limit) in zip(names, keys, strict=True):
        reasons = [r for r in left if r.output == output and r.limit == limit]
        left = [r for r in left if r not in reasons]
        yield _legal(name), reasons
    if not any(r.code.startswith("V1") for r in left):
        yield "no NaN, no infinity, nothing missing or constant", []
    for reason in left:
        yield _legal(f"{reason.code} {reason.output}".strip()), [reason]


def _legal(text: str) -> str:
    """The text without the characters that XML 1.0 forbids."""
    return _FORBIDDEN.sub("", text)
