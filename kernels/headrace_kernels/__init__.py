"""Kernels behind `headrace.engine.ops`."""
