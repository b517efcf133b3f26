"""Builds the distribution; all metadata stands in pyproject.toml."""

from setuptools import setup

setup()
