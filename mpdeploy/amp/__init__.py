"""Mixed-precision training on torch.autocast that tells what each step did.

Five lines turn a plain loop into a mixed-precision one::

    engine = Engine(model, optimizer, Level.FP16_MIXED)
    for x, y in data:
        with engine.forward():
            output = model(x)
        engine.backward(loss(output.float(), y))
        result = engine.step()  # applied, or skipped and why
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpdeploy.amp.ema import Ema as Ema
    from mpdeploy.amp.engine import Engine as Engine
    from mpdeploy.amp.levels import AmpConfig as AmpConfig
    from mpdeploy.amp.levels import Level as Level
    from mpdeploy.amp.result import Skip as Skip
    from mpdeploy.amp.result import StepResult as StepResult
    from mpdeploy.amp.scaling import LossScaling as LossScaling
    from mpdeploy.amp.scaling import ScaleState as ScaleState
    from mpdeploy.amp.telemetry import Telemetry as Telemetry
    from mpdeploy.numerics.formats import Format as Format

# Loaded on first use: the levels are known to the command line, which must not wait for torch.
_HOMES = {
    "AmpConfig": "amp.levels",
    "Ema": "amp.ema",
    "Engine": "amp.engine",
    "Format": "numerics.formats",
    "Level": "amp.levels",
    "LossScaling": "amp.scaling",
    "ScaleState": "amp.scaling",
    "Skip": "amp.result",
    "StepResult": "amp.result",
    "Telemetry": "amp.telemetry",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mpdeploy.amp' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mpdeploy.{_HOMES[name]}"), name)
