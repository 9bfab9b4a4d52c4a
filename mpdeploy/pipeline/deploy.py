"""A whole deployment as stages: train, export, convert, verify, build, report, bundle."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.conversion.record import ConversionResult
from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.options import BuildOptions, parse_shapes
from mpdeploy.engine.record import EngineRecord, sidecar_of
from mpdeploy.files import readable_file
from mpdeploy.numerics.formats import Format
from mpdeploy.pipeline import inputs
from mpdeploy.pipeline.config import BuildPart, Deployment
from mpdeploy.pipeline.record import Exported, Stage, Watch, quiet_stage, unwatched
from mpdeploy.pipeline.reference import REFERENCE, Reference, feeds_for, make_reference, trained_ranges, with_notes
from mpdeploy.pipeline.release import CONVERSION, DRIFT, EXAMPLES, FACTS, bundle, gather_report
from mpdeploy.pipeline.stages import Done, Workshop, workshop
from mpdeploy.pipeline.steps import notes_on
from mpdeploy.pipeline.training import Trains, to_the_end, train_stage
from mpdeploy.runtime.feeds import Feeds, feeds_of, open_feeds
from mpdeploy.source.given import Given
from mpdeploy.train.handover import CHECKPOINT
from mpdeploy.verification.api import verify
from mpdeploy.verification.record import DriftReport

LATEST, RELEASE = "latest", "release"


@dataclass(frozen=True)
class StageRun:
    """One stage of a run: its name, its folder, whether it had been done before, and the seconds it took."""

    name: str
    folder: str
    reused: bool
    seconds: float


@dataclass(frozen=True)
class DeployResult:
    """What a pipeline did.  ``latest`` is the folder with models and report, ``release`` the bundle, empty if none.

    ``passed``, and true itself, if every model is within its budget; only then are engines built and a bundle packed.
    """

    stages: tuple[StageRun, ...]
    models: tuple[Exported, ...]
    passed: bool
    reference: str
    latest: str
    release: str
    notes: tuple[str, ...]
    seconds: float
    schema: str = "mpdeploy.deployment/1"

    def __bool__(self) -> bool:
        return self.passed


@dataclass(frozen=True)
class Voice:
    """How a run tells what it does: ``stage`` surrounds each stage, ``watch`` each pass over data.

    ``unchanged`` is told the stages that need not be done, ``trains`` runs a training to its end.
    """

    stage: Stage = quiet_stage
    watch: Watch = unwatched
    unchanged: Callable[[str], None] = lambda name: None
    trains: Trains = to_the_end


SILENT = Voice()


def deploy(deployment: Deployment, *, voice: Voice = SILENT, commands: tuple[str, ...] = ()) -> DeployResult:
    """Run the stages of a deployment that are not done yet, and let `latest` and `release` lead to the result.

    ``commands`` go into the report.  Raises what the stages raise; what was finished before stays, and the next
    run goes on from there.
    """
    if deployment.build:
        # What can never work is refused before the work.
        find_backend(deployment.build.backend).target(_options(deployment.build), find_gpus())
    for path in deployment.bundle.licences if deployment.bundle else ():
        readable_file(Path(path), "licence")
    with workshop(Path(deployment.output)) as shop:
        return _Run(deployment, shop, voice, commands).result()


class _Run:
    """One run over the stages, in order."""

    def __init__(self, deployment: Deployment, shop: Workshop, voice: Voice, commands: tuple[str, ...]) -> None:
        self._wanted, self._shop, self._voice, self._commands = deployment, shop, voice, commands
        self._runs: list[StageRun] = []
        self._started = time.monotonic()

    def result(self) -> DeployResult:
        """Do everything, and return what was done."""
        source = self._source()
        reference = self._reference(source)
        record = with_notes(records.load(Reference, reference.folder / FACTS))
        ranges, proof = self._feeds(source, reference, record)
        made = [self._model(Format(word), reference, record, ranges, proof) for word in self._wanted.convert.precision]
        passed = all(m.drift.verdict.passed for m, _ in made)
        if self._wanted.build and passed:
            made = [self._with_engine(m, stages, self._wanted.build, proof) for m, stages in made]
        models = tuple(m for m, _ in made)
        parts = [reference, *(stage for _, stages in made for stage in stages)]
        report = self._stage(
            "report",
            inputs.report_inputs([part.digest for part in parts], self._commands),
            lambda work, final: gather_report(
                work, source, record, models, parts, self._commands, with_source=self._wanted.train is not None
            ),
        )
        release = None
        wish = self._wanted.bundle
        if wish is not None and passed:
            release = self._stage(
                "bundle",
                inputs.bundle_inputs(report.digest, wish),
                lambda work, final: bundle(report.folder, work, wish, source, proof),
            )
        latest = self._shop.point(LATEST, report.folder)
        shipped = self._shop.point(RELEASE, release.folder / wish.name) if release and wish else None
        self._shop.tidy()
        return DeployResult(
            stages=tuple(self._runs),
            models=models,
            passed=passed,
            reference=str(latest / REFERENCE),
            latest=str(latest),
            release=str(shipped or ""),
            notes=notes_on(record, models),
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _source(self) -> Path:
        if self._wanted.model:
            return Path(self._wanted.model.path)
        part, trains = self._wanted.train, self._voice.trains
        assert part is not None  # noqa: S101 - one of the two is there, see config
        readable_file(Path(part.recipe), "recipe")
        done = self._told("train", lambda: train_stage(self._shop, part, trains))
        return done.folder / CHECKPOINT

    def _reference(self, source: Path) -> Done:
        part = self._wanted.model or self._wanted.train
        assert part is not None  # noqa: S101
        given = Given(recipe=part.recipe)
        if self._wanted.model:
            model = self._wanted.model
            given = Given(model.recipe, model.factory, model.inputs, model.weights, model.trust)
        data = None if self._wanted.train else self._given_data()

        def make(work: Path, final: Path) -> None:
            record, examples = make_reference(source, work / REFERENCE, given, data, self._wanted.convert.timeout)
            if examples is not None and not record.made_up:
                with (work / EXAMPLES).open("wb") as stream:
                    np.savez(stream, allow_pickle=False, **examples)
            records.save(record, work / FACTS)

        return self._stage("export", inputs.export_inputs(source, part, data), make)

    def _given_data(self) -> Feeds | None:
        word = self._wanted.convert.data or self._wanted.verify.data
        return None if word is None else open_feeds(word)

    def _feeds(self, source: Path, reference: Done, record: Reference) -> tuple[Feeds | None, Feeds]:
        """What the deployment names; failing that what training left; failing that whichever is named."""
        given, onnx = self._given_data(), reference.folder / REFERENCE
        ranges: Feeds | None
        if EXAMPLES in reference.record.files:
            ranges, proof = feeds_for(source, onnx, record, open_feeds(str(reference.folder / EXAMPLES)))
        elif given is not None:
            ranges, proof = given, given
        else:
            ranges, proof = feeds_for(source, onnx, record, feeds_of([]))
        if self._wanted.convert.data is not None:
            ranges = open_feeds(self._wanted.convert.data)
        if self._wanted.verify.data is not None:
            proof = open_feeds(self._wanted.verify.data)
        return ranges, proof

    def _model(
        self, low: Format, reference: Done, record: Reference, ranges: Feeds | None, proof: Feeds
    ) -> tuple[Exported, tuple[Done, ...]]:
        part, name = self._wanted.convert, f"model.{low.value}.onnx"
        source = reference.folder / REFERENCE

        def make(work: Path, final: Path) -> None:
            result = convert(
                source,
                work / name,
                precision=low.value,
                data=None if ranges is None else self._voice.watch(ranges, "measuring ranges"),
                ranges=trained_ranges(source) if ranges is None else None,
                policy=part.policy,
                keep_fp32=part.keep_fp32,
                op_fp32=part.op_fp32,
                low_io=part.low_io,
                target=part.target,
                timeout=part.timeout,
                trained_fp32=record.keep_fp32,
            )
            plan = str(final / Path(result.plan).name) if result.plan else ""
            records.save(replace(result, model=str(final / name), plan=plan), work / CONVERSION)

        converted = self._stage(
            f"convert-{low.value}", inputs.convert_inputs(reference.digest, low.value, part, ranges), make
        )
        candidate = converted.folder / name
        budget, limit = self._wanted.verify.budget, self._wanted.verify.timeout
        verified = self._stage(
            f"verify-{low.value}",
            inputs.verify_inputs(reference.digest, converted.digest, budget, proof),
            lambda work, final: records.save(
                verify(source, candidate, self._voice.watch(proof, "verifying"), budget, timeout=limit), work / DRIFT
            ),
        )
        conversion = records.load(ConversionResult, converted.folder / CONVERSION)
        drift = records.load(DriftReport, verified.folder / DRIFT)
        return Exported(low, conversion, drift), (converted, verified)

    def _with_engine(
        self, model: Exported, stages: tuple[Done, ...], part: BuildPart, proof: Feeds
    ) -> tuple[Exported, tuple[Done, ...]]:
        if part.precision is not None and model.precision.value not in part.precision:
            return model, stages
        source = Path(model.conversion.model)
        name = source.with_suffix(".engine").name

        def make(work: Path, final: Path) -> None:
            build_engine(
                source,
                work / name,
                backend=part.backend,
                options=_options(part),
                expect=model.precision,
                data=proof,
            )

        built = self._stage(f"build-{model.precision.value}", inputs.build_inputs(stages[0].digest, part, proof), make)
        engine = built.folder / name
        record = records.load(EngineRecord, sidecar_of(engine))
        return replace(model, engine=record, engine_path=str(engine)), (*stages, built)

    def _stage(self, name: str, made_from: inputs.Inputs, make: Callable[[Path, Path], None]) -> Done:
        return self._told(name, lambda: self._shop.done(name, made_from, make))

    def _told(self, name: str, work: Callable[[], Done]) -> Done:
        started = time.monotonic()
        with self._voice.stage(name):
            done = work()
        if done.reused:
            self._voice.unchanged(name)
        self._runs.append(StageRun(name, str(done.folder), done.reused, round(time.monotonic() - started, 3)))
        return done


def _options(part: BuildPart) -> BuildOptions:
    return BuildOptions(profiles=parse_shapes(part.shapes), capabilities=part.sm)
