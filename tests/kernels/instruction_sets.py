"""Every instruction set of the native kernels: this processor's own, and the wide ones emulated.

Import the fixture into a test module: each of its tests then runs once a set.
"""

import pytest

from headrace_kernels import native

# For modules whose first test may have to build the emulation: ten times what that takes on a quiet machine.
MAY_BUILD = pytest.mark.timeout(300)


@pytest.fixture(params=["own", "avx512", "avx512bf16"], autouse=True)
def instruction_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if native.instruction_set() is None:
        pytest.skip("The native kernels are not built here.")
    if request.param != "own":
        library = request.getfixturevalue("emulated")[request.param]
        monkeypatch.setattr(native, "_library", lambda: library)
