"""ONNX in memory (onnx_ir): files, types, operator facts.  The floor on which planning and converting stand."""
