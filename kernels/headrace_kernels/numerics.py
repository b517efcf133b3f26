"""Choices of arithmetic that all kernels share, because a sequence's answer must not depend on which one ran."""

# Whether a multiplication and an addition may become one rounding. Triton's default differs between its versions.
FP_FUSION = True
