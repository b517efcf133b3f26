"""The pure parts: choices, seeds, counts, JSON."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.generation import Usage
from headrace.gateway.fleet_json import plain
from headrace.gateway.openai_map import completion_choices
from headrace.gateway.openai_schema import CompletionBody
from headrace.gateway.strict_body import parse
from headrace.gateway.usage import total_usage


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 8))
def test_seeds_of_choices_differ_and_stay_in_range(seed: int, n: int) -> None:
    body = parse(CompletionBody, f'{{"prompt": "x", "seed": {seed}, "n": {n}}}'.encode())
    seeds = [choice.sampling.seed for choice in completion_choices(body, 8)]
    assert seeds[0] == seed
    assert len(set(seeds)) == n


def test_choices_without_a_seed_have_none() -> None:
    body = parse(CompletionBody, b'{"prompt": ["x", "y"], "n": 2}')
    choices = completion_choices(body, 4)
    assert [choice.sampling.seed for choice in choices] == [None] * 4
    assert [choice.prompt_index for choice in choices] == [0, 0, 1, 1]


def test_a_prompt_is_counted_once() -> None:
    counts = [(0, Usage(10, 5, 0)), (0, Usage(10, 7, 10)), (1, Usage(20, 1, 16))]
    assert total_usage(counts) == Usage(30, 13, 16)


def test_what_a_choice_computed_for_another_was_not_cached() -> None:
    """Two choices of one prompt, in whatever order they met; equal prompts are still two."""
    assert total_usage([(0, Usage(10, 1, 8)), (0, Usage(10, 1, 0))]) == Usage(10, 2, 0)
    assert total_usage([(0, Usage(10, 1, 8)), (1, Usage(10, 1, 0))]) == Usage(20, 2, 8)


def test_plain_leaves_no_value_that_json_lacks() -> None:
    assert plain((1, None, "a", b"\x01", float("nan"), True)) == [1, None, "a", "01", None, True]
