#!/usr/bin/env python3
"""Write mpdeploy/graph/contrib_schemas.json: the type rules of ONNX Runtime's com.microsoft operators.

They are read from the installed ONNX Runtime, so that planning needs neither a runtime nor a guess.
"""

import json
from pathlib import Path

import onnxruntime
from onnxruntime.capi import _pybind_state as state

TARGET = Path(__file__).parent.parent / "mpdeploy" / "graph" / "contrib_schemas.json"


def main() -> None:
    operators = {}
    for schema in state.get_all_operator_schema():
        if schema.domain != "com.microsoft":
            continue
        variadic = state.schemadef.OpSchema.FormalParameterOption.Variadic
        operators[schema.name] = {
            "inputs": [[p.typeStr, p.option == variadic] for p in schema.inputs],
            "outputs": [[p.typeStr, p.option == variadic] for p in schema.outputs],
            "types": {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints},
        }
    document = {"onnxruntime": onnxruntime.__version__, "operators": dict(sorted(operators.items()))}
    TARGET.write_text(json.dumps(document, separators=(",", ":")) + "\n")
    print(f"{len(operators)} operators -> {TARGET}")


if __name__ == "__main__":
    main()
