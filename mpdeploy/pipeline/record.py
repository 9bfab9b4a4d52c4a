"""What an export is asked for, and what it wrote."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from mpdeploy.conversion.record import ConversionResult
from mpdeploy.engine.record import EngineRecord
from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.feeds import Data, Feeds
from mpdeploy.verification.record import DriftReport

Stage = Callable[[str], AbstractContextManager[None]]
Watch = Callable[[Feeds, str], Feeds]


@dataclass(frozen=True)
class Wishes:
    """What an export is asked for.

    ``data`` serves for ranges and for verification; without it the folders that training left beside the
    checkpoint do, and failing these the checkpoint's own examples.  ``engines`` maps a precision to the back end
    that builds from it.  ``labels``: right answers in the data count.  One run of a model may take ``timeout`` seconds.
    ``policy``, ``keep_fp32``, ``op_fp32``, ``low_io`` and ``target`` are those of the conversion.
    """

    precisions: tuple[Format, ...]
    data: Data | None = None
    budget: Budget | None = None
    engines: tuple[tuple[Format, str], ...] = ()
    labels: bool = True
    timeout: float | None = None
    policy: str | None = None
    keep_fp32: tuple[str, ...] = ()
    op_fp32: tuple[str, ...] = ()
    low_io: bool = False
    target: str | None = None


@dataclass(frozen=True)
class Exported:
    """One low-precision model of an export: its conversion, its drift, and its engine where one was asked for."""

    precision: Format
    conversion: ConversionResult
    drift: DriftReport
    engine: EngineRecord | None = None
    engine_path: str = ""


@dataclass(frozen=True)
class ExportResult:
    """All that an export wrote.  ``passed``, and true itself, if every model is within its budget.

    ``torch_difference`` is how far the FP32 ONNX file is from torch's own numbers, None for a model that came as
    ONNX.  ``notes`` are what a person should know of the source and of the evidence.
    """

    checkpoint: str
    reference: str
    torch_difference: float | None
    models: tuple[Exported, ...]
    report_html: str
    report_json: str
    passed: bool
    seconds: float
    manifest: str = ""
    notes: tuple[str, ...] = ()
    schema: str = "mpdeploy.export/1"

    def __bool__(self) -> bool:
        return self.passed


def quiet_stage(name: str) -> AbstractContextManager[None]:
    """Return a context that says nothing."""
    return nullcontext()


def unwatched(feeds: Feeds, what: str) -> Feeds:
    """Return the feeds as they are."""
    return feeds
