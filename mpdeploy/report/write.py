"""Reports into files."""

from pathlib import Path

from mpdeploy import records
from mpdeploy.files import write_text
from mpdeploy.report.junit import junit
from mpdeploy.report.markdown import markdown
from mpdeploy.report.page import page
from mpdeploy.report.record import Report


def write_report(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.json`` into ``folder``, each whole or not at all, and return their paths."""
    html, json = folder / "report.html", folder / "report.json"
    records.save(report, json)
    write_text(html, page(report))
    return html, json


def write_junit(report: Report, path: Path) -> None:
    """Write the report as JUnit XML."""
    write_text(path, junit(report))


def write_markdown(report: Report, path: Path) -> None:
    """Write the summary for a pull request."""
    write_text(path, markdown(report))
