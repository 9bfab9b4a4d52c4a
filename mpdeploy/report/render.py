"""The templates of the pages: one environment, one style sheet, everything from models and data escaped."""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import mpdeploy

if TYPE_CHECKING:
    import jinja2


def rendered(template: str, values: Mapping[str, object]) -> str:
    """Return a page: the template with these values, our style sheet as ``css`` and our version as ``tool``."""
    import markupsafe

    environment = _environment()
    source, _, _ = environment.loader.get_source(environment, "report.css")  # type: ignore[union-attr]
    css = markupsafe.Markup(source)  # noqa: S704 - our own style sheet
    return environment.get_template(template).render(values, css=css, tool=f"mpdeploy {mpdeploy.__version__}")


@functools.cache
def _environment() -> "jinja2.Environment":
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("mpdeploy.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
