"""Builds the distribution; metadata stands in pyproject.toml, and here the native kernels, which may be left out."""

from glob import glob

from setuptools import Extension, setup

NATIVE = Extension(
    "headrace_kernels._native",
    sources=sorted(glob("kernels/headrace_kernels/csrc/*.cpp")),
    depends=sorted(glob("kernels/headrace_kernels/csrc/*.h")),
    extra_compile_args=[
        *("-std=c++20", "-O3", "-fno-math-errno", "-Wno-psabi", "-Wno-maybe-uninitialized"),
        # Products are fused into sums where the source says so: CFLAGS may name a processor that could always do it.
        "-ffp-contract=off",
    ],
    extra_link_args=["-pthread"],
    language="c++",
    # Without a compiler, or on another processor, the engine computes with torch.
    optional=True,
)

setup(ext_modules=[NATIVE])
