"""Which control tokens end an answer, beyond those that a model's files declare.

A file may name one end token where the model has two (end of turn, end of text): a sampled one of the other kind must
end the answer too, or the model talks on to itself.
"""

from collections.abc import Iterable, Mapping

_ENDS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
        "</s>",
    }
)


def stop_ids(declared: Iterable[int], control_tokens: Mapping[str, int]) -> tuple[int, ...]:
    """Sorted ids: the declared ones and the control tokens whose text is a known ending."""
    return tuple(sorted({*declared, *(control_tokens[text] for text in _ENDS & control_tokens.keys())}))
