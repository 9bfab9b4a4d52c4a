"""The JSON schema of ``report.json``, published so that other tools can rely on it."""

from typing import Any

import msgspec

from mpdeploy.report.record import Report
from mpdeploy.verification.record import DriftReport

PUBLISHED = {"report.schema.json": Report, "drift.schema.json": DriftReport}


def json_schema(kind: type) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a record; its ``schema`` field must have the value that it names."""
    document = msgspec.json.schema(kind)
    for name, definition in document["$defs"].items():
        version = definition.get("properties", {}).get("schema", {})
        if "default" in version:
            definition["properties"]["schema"] = {"const": version["default"]}
        definition.setdefault("title", name)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **document}
