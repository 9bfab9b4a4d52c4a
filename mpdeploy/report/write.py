"""Reports into a folder."""

from pathlib import Path

from mpdeploy import records
from mpdeploy.files import write_text
from mpdeploy.report.page import page
from mpdeploy.report.record import Report


def write_report(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.json`` into ``folder``, each whole or not at all, and return their paths."""
    html, json = folder / "report.html", folder / "report.json"
    records.save(report, json)
    write_text(html, page(report))
    return html, json
