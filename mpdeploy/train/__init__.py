"""Training: recipes, the loop around the AMP engine, checkpoints that a deployment can start from."""

from mpdeploy.train.data import Arrays as Arrays
from mpdeploy.train.data import Batch as Batch
from mpdeploy.train.data import Examples as Examples
from mpdeploy.train.loading import load_recipe as load_recipe
from mpdeploy.train.recipe import Data as Data
from mpdeploy.train.recipe import Metric as Metric
from mpdeploy.train.recipe import Recipe as Recipe
from mpdeploy.train.recipe import accuracy as accuracy
from mpdeploy.train.specs import TensorSpec as TensorSpec
