"""Kernels behind `headrace.engine.ops`: one Triton file a kernel, `reference` the specification of them all.

Importing this package imports neither torch nor triton; only the kernels' own files do.
"""
