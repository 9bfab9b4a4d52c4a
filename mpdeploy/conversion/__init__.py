"""A plan carried out: the FP32 graph becomes a mixed-precision one."""
