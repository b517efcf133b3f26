"""Kernels: Triton's behind `headrace.engine.ops`, the CPU's in `csrc` behind `native`; `reference` specifies them.

Importing this package imports neither torch nor triton; Triton's kernels, `reference` and `packed_tensor` do.
"""
