"""The record of a training: how it was set up, what came of each epoch, where and when it ran."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: mean loss over its applied steps, the first held-out metric, how many steps were skipped.

    ``metrics`` holds all held-out metrics by name, where there are several; what is not finite is None.
    """

    train_loss: float | None
    metric: float | None
    skipped: int
    metrics: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """One run of a training, from its start, a resumption or not, to its end or its last saved state.

    ``first_step`` to ``last_step`` are the steps that it did, without the last one; ``started`` is in UTC, ISO 8601.
    """

    started: str
    seconds: float
    first_step: int
    last_step: int
    level: str
    configuration: str
    accumulate: int
    processes: int
    sharding: str
    device: str
    processor: str
    threads: int
    torch_version: str


@dataclass(frozen=True)
class TrainingRecord:
    """A training as a whole; ``metrics`` names the held-out metrics, the first of which decides which epoch is best.

    ``finished`` is False until its last epoch is done or the recipe has stopped it.
    """

    name: str
    recipe_sha256: str
    seed: int
    epochs: int
    steps: int
    batch_size: int
    clip_norm: float | None
    ema_decay: float | None
    optimizer: str
    schedule: str | None
    metrics: tuple[str, ...]
    higher_is_better: bool
    history: tuple[EpochRecord, ...]
    sessions: tuple[Session, ...]
    steps_applied: int
    steps_skipped: int
    finished: bool
    schema: str = "mpdeploy.training/1"
