"""Training: recipes, the loop around the AMP engine, checkpoints that a deployment can start from.

The package itself can be called: ``mpdeploy.train("recipe.py", epochs=3)`` trains; see ``mpdeploy.api``.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from mpdeploy.train.data import Arrays as Arrays
from mpdeploy.train.data import Batch as Batch
from mpdeploy.train.data import Examples as Examples
from mpdeploy.train.loading import load_recipe as load_recipe
from mpdeploy.train.recipe import Data as Data
from mpdeploy.train.recipe import Metric as Metric
from mpdeploy.train.recipe import Recipe as Recipe
from mpdeploy.train.recipe import StopTraining as StopTraining
from mpdeploy.train.recipe import accuracy as accuracy
from mpdeploy.train.specs import TensorSpec as TensorSpec


class _Callable(ModuleType):
    """This package, which is a function as well: both are to be found under one name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The function needs rooms above this one, such as the report's.
        return importlib.import_module("mpdeploy.api").train(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
