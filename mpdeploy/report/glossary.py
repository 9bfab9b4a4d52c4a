"""Each metric in one sentence, for readers of a report."""

from collections.abc import Sequence

from mpdeploy.verification.record import DriftReport

_ALWAYS = (
    ("Cosine", "The cosine of the angle between all reference and candidate values: 1 is the same direction."),
    (
        "Norm-relative error",
        "The length of the difference over the length of the reference, ‖candidate − FP32‖ / ‖FP32‖, over all samples.",
    ),
    (
        "Worst sample",
        "The largest such error of a single sample, relative to its own size or the typical one, whichever is larger.",
    ),
    (
        "SQNR",
        "Signal to quantisation noise: 10 log₁₀ of the reference's energy over the error's; 20 dB more is a tenth of "
        "the error.",
    ),
    ("Largest and mean error", "Of a single value, in the output's own unit."),
)
_TOP1 = ("Top-1", "How often the candidate's best class is FP32's best class, whether or not it is the right one.")
_ACCURACY = ("Accuracy", "How often the best class is the true one, by the labels in the data.")
_TARGETS = (
    "Error against targets",
    "The mean absolute difference from the true values in the data; PSNR is the same in dB, for images.",
)
_NOISE = (
    "Noise floor",
    "How far the FP32 reference is from itself when it runs in another way: no candidate can be held to less.",
)


def glossary(drifts: Sequence[DriftReport]) -> tuple[tuple[str, str], ...]:
    """Return name and meaning of each metric that the drift reports show."""
    outputs = [output for drift in drifts for output in drift.outputs]
    return (
        *(_ALWAYS if any(not output.exact for output in outputs) else ()),
        *((_TOP1,) if any(output.top1 is not None for output in outputs) else ()),
        *((_ACCURACY,) if any(output.labelled for output in outputs) else ()),
        *((_TARGETS,) if any(output.targets for output in outputs) else ()),
        *((_NOISE,) if any(drift.noise for drift in drifts) else ()),
    )
