"""The whole road: from a model in any form, or from a recipe, to what ships."""

from mpdeploy.pipeline.config import EXAMPLE as EXAMPLE
from mpdeploy.pipeline.config import Deployment as Deployment
from mpdeploy.pipeline.config import read_deployment as read_deployment
from mpdeploy.pipeline.deploy import DeployResult as DeployResult
from mpdeploy.pipeline.deploy import Voice as Voice
from mpdeploy.pipeline.deploy import deploy as deploy
from mpdeploy.pipeline.export import export as export
from mpdeploy.pipeline.record import Exported as Exported
from mpdeploy.pipeline.record import ExportResult as ExportResult
from mpdeploy.pipeline.record import Wishes as Wishes
from mpdeploy.source.given import Given as Given
