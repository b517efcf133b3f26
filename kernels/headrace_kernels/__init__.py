"""Kernels: Triton's behind `headrace.engine.ops`, a file each; the CPU's in `csrc`, behind `native`; `reference` specifies.

Importing this package imports neither torch nor triton; Triton's kernels, `reference` and `packed_tensor` do.
"""
