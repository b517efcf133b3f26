"""Faults on purpose: a cluster of real processes, struck at exact moments, and what must hold all the same."""
