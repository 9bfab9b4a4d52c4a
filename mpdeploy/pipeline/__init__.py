"""The whole road: from a model in any form, or from a recipe, to what ships."""

from mpdeploy.pipeline.export import export as export
from mpdeploy.pipeline.record import Exported as Exported
from mpdeploy.pipeline.record import ExportResult as ExportResult
from mpdeploy.pipeline.record import Wishes as Wishes
from mpdeploy.source.loaded import Given as Given
