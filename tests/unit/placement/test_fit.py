"""What fits on machines, and how its lack is said."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import StartupError
from headrace.placement.fit import require_fit, said, shortfall
from headrace.placement.processes import Bundle, ProcessSpec

numbers = st.integers(min_value=0, max_value=8)
bundles = st.builds(Bundle, numbers.map(float), numbers.map(float))


def spec(name: str, *needs: Bundle) -> ProcessSpec:
    return ProcessSpec(name, (), {}, Path("/dev/null"), needs)


@pytest.mark.parametrize(
    ("specs", "machines", "sentence"),
    [
        ([spec("a", Bundle(2))], [Bundle(2)], ""),
        ([spec("a", Bundle(0.5)), spec("b", Bundle(0.5))], [Bundle(1)], ""),
        (
            [spec("a", Bundle(3))],
            [Bundle(2), Bundle(2)],
            "a needs 3 CPUs on one machine, and no machine has more than 2 CPUs.",
        ),
        (
            [spec("a", Bundle(1, 1), Bundle(1, 1))],
            [Bundle(8, 1), Bundle(8, 1)],
            "a needs 2 CPUs and 2 GPUs on one machine, and no machine has more than 8 CPUs and 1 GPU.",
        ),
        ([spec("a", Bundle(1))], [], "a needs 1 CPU on one machine, and no machine has more than 0 CPUs."),
        (
            [spec("a", Bundle(2)), spec("b", Bundle(2))],
            [Bundle(3)],
            "2 workers need 4 CPUs, and there are 3 CPUs in all.",
        ),
        (
            [spec("a", Bundle(1, 1)), spec("b", Bundle(1, 1))],
            [Bundle(4, 1)],
            "2 workers need 2 CPUs and 2 GPUs, and there are 4 CPUs and 1 GPU in all.",
        ),
    ],
)
def test_sentences(specs: list[ProcessSpec], machines: list[Bundle], sentence: str) -> None:
    assert shortfall(specs, machines) == sentence


def test_a_refusal_says_what_to_do() -> None:
    require_fit([spec("a", Bundle(1))], [Bundle(1)], "Ask for less.")
    with pytest.raises(StartupError) as refused:
        require_fit([spec("a", Bundle(2))], [Bundle(1)], "Ask for less.")
    assert refused.value.remedy == "Ask for less."


@given(st.lists(bundles, max_size=4))
def test_each_fits_on_a_machine_of_its_own(needs: list[Bundle]) -> None:
    assert shortfall([spec(f"{index}", need) for index, need in enumerate(needs)], needs) == ""


@given(st.lists(bundles, min_size=1, max_size=4), bundles)
def test_more_machines_never_hurt(needs: list[Bundle], machine: Bundle) -> None:
    specs = [spec(f"{index}", need) for index, need in enumerate(needs)]
    if shortfall(specs, [machine]) == "":
        assert shortfall(specs, [machine, machine]) == ""


def test_gpus_are_named_only_where_somebody_asked() -> None:
    assert said(Bundle(1)) == "1 CPU"
    assert said(Bundle(4, 8), Bundle(1)) == "4 CPUs"
    assert said(Bundle(4), Bundle(1, 0.5)) == "4 CPUs and 0 GPUs"
