"""A benchmark as a picture: bars of throughput, one group a batch size, as SVG alone and inside a page."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from mpdeploy import records
from mpdeploy.files import atomic_folder, write_text
from mpdeploy.report.pictures import TONES
from mpdeploy.report.render import rendered
from mpdeploy.session.bench_record import BatchTiming, BenchReport, BenchRow, Unusable

_WIDTH, _LABEL, _VALUE = 960, 350, 190  # pixels: the picture, the names on its left, the numbers on its right
_BAR, _GAP, _HEAD = 22, 6, 34
_COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9c6b4e", "#9498a0")

_FILES = ("bench.json", "bench.svg", "bench.html")

_HEADS = (
    "Contestant",
    "Batch",
    "Median ms",
    "p95",
    "p99",
    "Samples/s",
    "Times as fast",
    "Peak MB",
    "Cold start s",
    "Drift",
)


@dataclass(frozen=True)
class Bar:
    """One contestant in a group: how long its bar is in percent, and its figures; a caveat in place of a bar."""

    tone: int
    name: str
    percent: float
    value: str
    caveat: str


@dataclass(frozen=True)
class Group:
    """All contestants at one batch size."""

    batch: int
    bars: tuple[Bar, ...]


def write_bench(report: BenchReport, folder: Path) -> Path:
    """Write ``bench.json``, ``bench.svg`` and ``bench.html`` into ``folder``, all or none; return the page's path."""
    with atomic_folder(folder, _FILES.__contains__) as scratch:
        json, picture, html = bench_files(scratch)
        records.save(report, json)
        write_text(picture, svg(report))
        write_text(html, page(report))
    return bench_files(folder)[-1]


def bench_files(folder: Path) -> tuple[Path, ...]:
    """Return what ``write_bench`` writes in a folder."""
    return tuple(folder / name for name in _FILES)


def svg(report: BenchReport) -> str:
    """Return the bars as one SVG document."""
    parts: list[str] = []
    y = 0
    for batch in _batches(report):
        group = [(row, timing) for row in report.rows for timing in row.timings if timing.batch == batch]
        fastest = max((t.throughput for row, t in group if not row.caveat), default=0.0) or 1.0
        parts.append(f'<text x="0" y="{y + 20}" font-weight="600">batch {batch}, samples per second</text>')
        y += _HEAD
        for number, (row, timing) in enumerate(group):
            parts.append(_bar(row, timing, y, number, fastest))
            y += _BAR + _GAP
        y += _GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" height="{y}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="currentColor" role="img" aria-label="throughput">'
        f"{''.join(parts)}</svg>\n"
    )


def page(report: BenchReport) -> str:
    """Return the page: bars, every number, and what to know of them, in the family of the reports."""
    notes = [f"{row.name}: {row.caveat}" for row in report.rows if row.caveat]
    notes += map(unusable_text, report.unusable)
    if report.baseline is not None:
        notes.insert(
            0, f"Ratios and drift (largest ‖difference‖ / ‖baseline‖ of an output) refer to {report.baseline}."
        )
    threads = f"{report.threads}" if report.threads else "one per core"
    facts = {"Machine": report.machine, "Threads": threads, "Rounds in turn": str(report.rounds), "Data": report.data}
    return rendered(
        "bench.html",
        {
            "report": report,
            "headline": _headline(report),
            "groups": [_group(batch, report) for batch in _batches(report)],
            "heads": _HEADS,
            "rows": [table_cells(row, timing) for row in report.rows for timing in row.timings],
            "notes": notes,
            "facts": [(name, value) for name, value in facts.items() if value],
        },
    )


def _headline(report: BenchReport) -> str:
    """The fastest contestant whose latency is a result, at the largest batch that it ran."""
    results = [(timing, row) for row in report.rows if not row.caveat for timing in row.timings]
    if not results:
        return "No contestant gave a result"
    timing, row = max(results, key=lambda pair: (pair[0].throughput, pair[0].batch))
    ratio = (
        "" if timing.ratio is None or row.name == report.baseline else f", {timing.ratio:.2f} times the FP32 baseline"
    )
    return f"{row.name} is the fastest: {timing.throughput:.4g} samples per second at batch {timing.batch}{ratio}"


def _batches(report: BenchReport) -> list[int]:
    return list(dict.fromkeys(timing.batch for row in report.rows for timing in row.timings))


def _group(batch: int, report: BenchReport) -> Group:
    found = [(row, timing) for row in report.rows for timing in row.timings if timing.batch == batch]
    fastest = max((timing.throughput for row, timing in found if not row.caveat), default=0.0) or 1.0
    return Group(
        batch,
        tuple(
            Bar(
                tone=number % TONES,
                name=row.name,
                percent=0.0 if row.caveat else 100 * timing.throughput / fastest,
                value=f"{timing.throughput:.4g}" + ("" if timing.ratio is None else f" · {timing.ratio:.2f} ×"),
                caveat=row.caveat,
            )
            for number, (row, timing) in enumerate(found)
        ),
    )


def table_cells(row: BenchRow, timing: BatchTiming) -> tuple[str, ...]:
    """Return one line of the table: times in ms, samples per second, ratio, memory in MB, cold start in s, drift."""
    latency = timing.latency
    return (
        row.name,
        str(timing.batch),
        *(f"{1e3 * seconds:.4g}" for seconds in (latency.median, latency.p95, latency.p99)),
        f"{timing.throughput:.4g}",
        "" if timing.ratio is None else f"{timing.ratio:.2f}",
        "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:.0f}",
        f"{row.cold_start_seconds:.2f}",
        drift_text(row),
    )


def drift_text(row: BenchRow) -> str:
    """Return the largest norm-relative difference of an output; empty without a baseline."""
    if not row.drift:
        return ""
    values = [difference.norm_relative for difference in row.drift]
    return "not finite" if None in values else f"{max(value for value in values if value is not None):.1e}"


def unusable_text(unusable: Unusable) -> str:
    """Return who could not be timed and why, as one line."""
    size = "" if unusable.batch is None else f" at batch {unusable.batch}"
    where = f" [{unusable.where}]" if unusable.where else ""
    remedy = f"; {unusable.remedy}" if unusable.remedy else ""
    return f"not timed: {unusable.name}{size}: {unusable.what}{where}{remedy}"


def _bar(row: BenchRow, timing: BatchTiming, y: int, number: int, fastest: float) -> str:
    width = 0.0 if row.caveat else (_WIDTH - _LABEL - _VALUE) * timing.throughput / fastest
    ratio = "" if timing.ratio is None else f"  {timing.ratio:.2f}×"
    middle = y + _BAR - 6
    colour = _COLOURS[number % len(_COLOURS)]
    bar = (
        ""
        if row.caveat
        else (f'<rect x="{_LABEL}" y="{y}" width="{max(width, 1):.1f}" height="{_BAR}" rx="3" fill="{colour}"/>')
    )
    said = "no result" if row.caveat else f"{timing.throughput:.4g}{ratio}"
    return (
        f'<text x="{_LABEL - 10}" y="{middle}" text-anchor="end">{escape(_short(row.name))}</text>{bar}'
        f'<text x="{_LABEL + width + 8:.1f}" y="{middle}">{said}</text>'
    )


def _short(name: str, room: int = 42) -> str:
    return name if len(name) <= room else f"{name[: room // 2 - 1]}…{name[-room // 2 :]}"
