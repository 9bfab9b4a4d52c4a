"""Reports into files."""

from pathlib import Path

from mpdeploy import records
from mpdeploy.files import atomic_folder, write_text
from mpdeploy.report.junit import junit
from mpdeploy.report.markdown import markdown
from mpdeploy.report.page import page
from mpdeploy.report.record import Report

HTML, JSON = "report.html", "report.json"


def report_files(folder: Path) -> tuple[Path, Path]:
    """Return what ``write_report`` writes in a folder: page and JSON."""
    return folder / HTML, folder / JSON


def write_report(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.json`` into ``folder``, both or neither, and return their paths."""
    with atomic_folder(folder, (HTML, JSON).__contains__) as scratch:
        html, json = report_files(scratch)
        records.save(report, json)
        write_text(html, page(report))
    return report_files(folder)


def write_junit(report: Report, path: Path) -> None:
    """Write the report as JUnit XML."""
    write_text(path, junit(report))


def write_markdown(report: Report, path: Path) -> None:
    """Write the summary for a pull request."""
    write_text(path, markdown(report))
