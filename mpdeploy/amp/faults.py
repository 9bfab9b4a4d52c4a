"""Faults during training, told with their cause."""

import contextlib
from collections.abc import Callable, Iterator

from mpdeploy.amp.levels import AmpConfig
from mpdeploy.amp.result import StepResult
from mpdeploy.errors import ModelError, TrainingDiverged
from mpdeploy.numerics.formats import Format

_MIXING_REMEDIES = {
    "forward": "cast to the weights' dtype where autocast is disabled, name the module in AmpConfig(fp32_modules=…), "
    "or train at a mixed level (FP32 weights)",
    "backward": "decorate a custom autograd Function with torch.amp.custom_fwd and torch.amp.custom_bwd",
}


@contextlib.contextmanager
def mixing_explained(which: str) -> Iterator[None]:
    """Turn torch's complaint about mixed dtypes in a ``which`` pass into a ``ModelError`` with the remedy."""
    try:
        yield
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        raise ModelError(
            f"a {which} pass mixes number formats: {str(error).splitlines()[0]}",
            remedy=_MIXING_REMEDIES[which],
        ) from error


@contextlib.contextmanager
def missing_kernel_explained(compute: Format) -> Iterator[None]:
    """Turn oneDNN's and torch.compile's words for an operator without a kernel into a ``ModelError``."""
    try:
        yield
    except RuntimeError as error:
        if "non-infra torch dispatch mode" in str(error):
            raise ModelError(
                f"torch.compile cannot trace products that this processor has no {compute.value} kernel for",
                remedy="leave fullgraph=True out here: the model then runs uncompiled",
            ) from error
        if "could not create a primitive" not in str(error):
            raise
        raise ModelError(
            f"this processor has no {compute.value} kernel for an operator of the model: {str(error).split('. ')[0]}",
            remedy="train at a bf16 level here, or on a GPU",
        ) from error


def stop_if_hopeless(result: StepResult, config: AmpConfig, *, exhausted: bool, culprit: Callable[[], str]) -> None:
    """Raise ``TrainingDiverged`` if so many steps were skipped that more of the same will not help."""
    if result.applied or not (result.streak >= config.patience or (exhausted and result.streak >= 2)):
        return
    why = f"{result.streak} steps in a row were skipped"
    if exhausted:
        why += f" and the loss scale is at its floor of {result.scale_after:g}"
    # The backward pass meets the parameters in about the reverse of the model's order.
    first = f"`{result.nonfinite[-1]}`" if result.nonfinite else "a parameter of another process, or changed since"
    raise TrainingDiverged(
        f"{why}: first not finite is {culprit() or 'a gradient'}, of the parameters that of {first}",
        remedy="lower the learning rate, or look at this step's data"
        + (", or let the scale go lower with LossScaling(floor=…)" if exhausted else "")
        + (", or train at a bf16 level, which has FP32's range" if config.compute is Format.FP16 else ""),
    )
