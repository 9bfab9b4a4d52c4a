"""A training in words and figures: what came of it, how it was set up, where and when it ran."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mpdeploy.numerics.telemetry import StepLine, TelemetryHeader
from mpdeploy.numerics.training import Session, TrainingRecord
from mpdeploy.report.curves import short

Fact = tuple[str, str]


@dataclass(frozen=True)
class Figure:
    """One figure of the page's head: what it is, its value, and a small note below."""

    name: str
    value: str
    note: str


@dataclass(frozen=True)
class EpochRow:
    """One epoch as the page's table shows it."""

    number: int
    loss: str
    metrics: tuple[str, ...]
    skipped: int
    best: bool


def figures(lines: Sequence[StepLine], record: TrainingRecord | None) -> list[Figure]:
    """Return what counts: final metrics, loss, steps, duration."""
    last, found = lines[-1], []
    history = record.history if record else ()
    if record and history:
        best = _best(record)
        for name in record.metrics:
            values = [row.metrics.get(name) for row in history]
            note = "on held-out examples"
            if name == record.metrics[0] and best is not None and best != len(history) - 1:
                note += f"; best {_text(values[best])} after epoch {best + 1}"
            found.append(Figure(name[:1].upper() + name[1:], _text(values[-1]), note))
    loss = next((line.loss for line in reversed(lines) if line.loss is not None), None)
    mean = history[-1].train_loss if history else None
    found.append(Figure("Loss", _text(loss), f"{_text(mean)} over the last epoch" if mean is not None else "last step"))
    skips = f"{last.skips:,} skipped" if last.skips else "none skipped"
    found.append(Figure("Steps", f"{last.step + 1:,}", skips))
    if last.scale_after != 1:
        found.append(Figure("Loss scale", short(last.scale_after), "at the end"))
    if record and record.sessions:
        runs = len(record.sessions)
        note = "in one go" if runs == 1 else f"in {runs} runs"
        found.append(Figure("Duration", duration(sum(session.seconds for session in record.sessions)), note))
    return found


def facts(header: TelemetryHeader, lines: Sequence[StepLine], record: TrainingRecord | None) -> list[Fact]:
    """Return how the training was set up and where it ran, as of its last run."""
    rates = [line.learning_rate for line in lines if line.learning_rate is not None]
    rate = "not recorded"
    if rates:
        moves = min(rates) != max(rates)
        rate = f"{short(max(rates))} at most, {short(rates[-1])} at the end" if moves else short(rates[0])
    if record is None or not record.sessions:
        return [("Precision", header.configuration), ("Learning rate", rate)]
    session = record.sessions[-1]
    parts = f", in {session.accumulate} parts" if session.accumulate > 1 else ""
    done = len(record.history)
    clip = [("Gradients clipped to", f"a norm of {short(record.clip_norm)}")] if record.clip_norm else []
    ema = [("Average of the weights", f"decay {record.ema_decay:g}")] if record.ema_decay else []
    several = f"{session.processes} processes ({session.sharding.upper()}), " if session.processes > 1 else ""
    return [
        ("Date", f"{_date(record.sessions[0])} UTC"),
        ("Level", f"{session.level}: {session.configuration}"),
        ("Epochs", f"{done} of {record.epochs}" if done != record.epochs else f"{done}"),
        ("Batch size", f"{record.batch_size}{parts}"),
        ("Optimizer", record.optimizer + (f", {record.schedule}" if record.schedule else "")),
        ("Learning rate", rate),
        *clip,
        *ema,
        ("Seed", str(record.seed)),
        ("Device", f"{several}{session.device}"),
        ("Processor", f"{session.processor}, {session.threads} threads in use"),
        ("PyTorch", session.torch_version),
        ("Recipe", f"{record.name}, SHA-256 {record.recipe_sha256}"),
    ]


def epoch_rows(record: TrainingRecord | None) -> list[EpochRow]:
    """Return a row for each epoch."""
    if record is None:
        return []
    best = _best(record)
    return [
        EpochRow(
            number + 1,
            _text(row.train_loss),
            tuple(_text(row.metrics.get(name)) for name in record.metrics),
            row.skipped,
            number == best,
        )
        for number, row in enumerate(record.history)
    ]


def session_rows(record: TrainingRecord | None) -> list[tuple[str, ...]]:
    """Return a row for each run, if there was more than one: start, duration, steps, level, processes, device."""
    if record is None or len(record.sessions) < 2:
        return []
    return [
        (
            _date(session),
            duration(session.seconds),
            f"{session.first_step:,} to {session.last_step:,}",
            session.level,
            str(session.processes),
            session.device,
        )
        for session in record.sessions
    ]


def duration(seconds: float) -> str:
    """Return a time as people say it: 8.3 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _best(record: TrainingRecord) -> int | None:
    known = [(row.metric, number) for number, row in enumerate(record.history) if row.metric is not None]
    if not known:
        return None
    sign = 1 if record.higher_is_better else -1
    return max(known, key=lambda pair: (sign * pair[0], -pair[1]))[1]


def _date(session: Session) -> str:
    try:
        return datetime.fromisoformat(session.started).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return session.started


def _text(value: float | None) -> str:
    return "not finite" if value is None else short(value)
