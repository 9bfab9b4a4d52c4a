#!/usr/bin/env python3
"""Write the JSON schemas of the reports into the package, after their records have changed."""

import json
from pathlib import Path

from mpdeploy.files import write_text
from mpdeploy.report.schema import PUBLISHED, json_schema

FOLDER = Path(__file__).parent.parent / "mpdeploy" / "report" / "schemas"

if __name__ == "__main__":
    for name, kind in PUBLISHED.items():
        write_text(FOLDER / name, json.dumps(json_schema(kind), indent=1) + "\n")
        print(FOLDER / name)
