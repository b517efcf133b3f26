"""Composition roots: the only place that picks implementations, one file a process."""
