"""A benchmark as a picture: bars of throughput, one group a batch size, as SVG alone and inside a page."""

from html import escape
from pathlib import Path

from mpdeploy import records
from mpdeploy.files import atomic_folder, write_text
from mpdeploy.session.bench_record import BatchTiming, BenchReport, BenchRow, Unusable

_WIDTH, _LABEL, _VALUE = 960, 350, 190  # pixels: the picture, the names on its left, the numbers on its right
_BAR, _GAP, _HEAD = 22, 6, 34
_COLOURS = ("#4269d0", "#efb118", "#3ca951", "#ff725c", "#a463f2", "#6cc5b0", "#9c6b4e", "#9498a0")
_FLAGGED = "#c9ccd1"  # a latency that is no result

_FILES = ("bench.json", "bench.svg", "bench.html")

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>mpdeploy bench</title>
<style>
 :root {{ color-scheme: light dark; }}
 body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
 table {{ border-collapse: collapse; width: 100%; }}
 th, td {{ text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #8884; white-space: nowrap; }}
 th:first-child, td:first-child {{ text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 15rem; }}
 th {{ white-space: normal; vertical-align: bottom; }}
 svg {{ max-width: 100%; height: auto; }}  .scroll {{ overflow-x: auto; }}  .quiet {{ opacity: .75; }}
</style>
<h1>Benchmark</h1>
<p class="quiet">{facts}</p>
{svg}
<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>
{notes}
</html>
"""


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
    batches = dict.fromkeys(timing.batch for row in report.rows for timing in row.timings)
    parts: list[str] = []
    y = 0
    for batch in batches:
        group = [(row, timing) for row in report.rows for timing in row.timings if timing.batch == batch]
        fastest = max(timing.throughput for _, timing in group) or 1.0  # a batch of nothing has no throughput
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
    """Return the page: the bars, every number, and what to know of them."""
    facts = [report.machine, f"{report.threads or 'all'} threads", f"rounds in turn: {report.rounds}", report.data]
    heads = "contestant|batch|median ms|p95|p99|samples/s|times as fast|peak MB|cold start s|drift".split("|")
    rows = [line for row in report.rows for line in _lines(row)]
    notes = [f"{row.name}: {row.caveat}" for row in report.rows if row.caveat]
    notes += map(unusable_text, report.unusable)
    if report.baseline is not None:
        notes.insert(
            0, f"Ratios and drift (largest ‖difference‖ / ‖baseline‖ of an output) refer to {report.baseline}."
        )
    return _PAGE.format(
        facts=escape(" · ".join(fact for fact in [*facts, report.created, report.tool] if fact)),
        svg=svg(report),
        heads="".join(f"<th>{head}</th>" for head in heads),
        rows="".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows),
        notes="".join(f'<p class="quiet">{escape(text)}</p>' for text in notes),
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


def _lines(row: BenchRow) -> list[tuple[str, ...]]:
    return [table_cells(row, timing) for timing in row.timings]


def _bar(row: BenchRow, timing: BatchTiming, y: int, number: int, fastest: float) -> str:
    width = (_WIDTH - _LABEL - _VALUE) * timing.throughput / fastest
    colour = _FLAGGED if row.caveat else _COLOURS[number % len(_COLOURS)]
    ratio = "" if timing.ratio is None else f"  {timing.ratio:.2f}×"
    middle = y + _BAR - 6
    return (
        f'<text x="{_LABEL - 10}" y="{middle}" text-anchor="end">{escape(_short(row.name))}</text>'
        f'<rect x="{_LABEL}" y="{y}" width="{max(width, 1):.1f}" height="{_BAR}" rx="3" fill="{colour}"/>'
        f'<text x="{_LABEL + width + 8:.1f}" y="{middle}">{timing.throughput:.4g}{ratio}'
        f"{' (no result)' if row.caveat else ''}</text>"
    )


def _short(name: str, room: int = 42) -> str:
    return name if len(name) <= room else f"{name[: room // 2 - 1]}…{name[-room // 2 :]}"
