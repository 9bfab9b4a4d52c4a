"""The report as one HTML page that opens offline."""

from mpdeploy.report import words
from mpdeploy.report.record import Report
from mpdeploy.report.render import rendered
from mpdeploy.report.view import file_name, view_of
from mpdeploy.runtime.runner import Execution


def page(report: Report) -> str:
    """Return the page: no script, no request, light and dark; what comes from models and data is escaped."""
    view = view_of(report)
    worst = [
        (candidate, output.name, sample)
        for candidate in view.candidates
        for output in candidate.drift.outputs
        for sample in output.worst_samples[:3]
        if sample.error != 0
    ]
    return rendered(
        "report.html",
        {
            "report": report,
            "view": view,
            "words": words,
            "worst_samples": worst,
            "run_text": run_text,
            "short": file_name,
            "none_sign": words.NONE,
        },
    )


def run_text(run: Execution) -> str:
    """Return in words exactly what ran."""
    text = f"{run.runtime} ({run.version}), {run.provider}: {run.precision}"
    return text if run.evidence else f"{text}; no evidence: {run.note}"
