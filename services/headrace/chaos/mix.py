"""The requests of a case: one of each way of answering, so that a fault that alters any of them is seen.

Pure. Prompts and parameters are always the same, so that one undisturbed run tells the answers of all cases; a salt
keeps the cases' pages apart, so that each computes and moves its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from headrace.core.errors import StartupError

Json = Mapping[str, object]

_TOKENS = 28
# A stop string that comes at once would end the answer before anything can befall it.
_STOP_FROM = 12
_STOP_LENGTH = 2
_PREFIX = "When the gate of the mill was opened the water came down the race and turned the wheel, "
_PROMPTS = {
    "greedy": "The miller keeps a book of every sack that leaves the mill, and reads from it on the first of each "
    "month to whoever owes him: four of rye to the baker, nine of barley to the inn, one to the widow. Then",
    "seeded": "A letter came by the noon boat, and nobody in the house knew the hand, though the seal was plain: "
    "a heron over three waves. The cook held it to the light, turned it about, and said that it should be opened by",
    "choices": "There are two roads from here to the coast. One goes by the hills, the other by the river and",
    "logprobs": "Weights and measures, as they were in use in that valley: a span is nine inches, a pace is two feet "
    "and a half, a chain is twenty-two yards, and a league is what a man walks in an hour, so that the sum of all is",
    "shared-a": f"{_PREFIX}slowly at first, so that the stones could be heard one by one, and",
    "shared-b": f"{_PREFIX}and all at once the whole house shook with it, so that",
    "stop": "Count the boats as they pass the lock, and write down each: a red one, a green one, a barge with coal, "
    "two that were empty, and",
    "whole": "Of everything in the workshop the lathe was oldest; it had been there before the roof, and",
}
# Their answers have one choice and come as a stream, so that one of them can be held and watched.
HELD = ("greedy", "seeded", "logprobs", "stop")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to /v1/completions."""

    name: str
    body: Json

    @property
    def streams(self) -> bool:
        return bool(self.body["stream"])


def mix(model: str) -> tuple[Ask, ...]:
    """All of them, without the stop string, which must be one that occurs: see `with_stop`."""
    return (
        _ask(model, "greedy", temperature=0),
        _ask(model, "seeded", temperature=1.0, seed=11, top_p=0.95),
        _ask(model, "choices", temperature=0.9, seed=21, n=2),
        _ask(model, "logprobs", temperature=0, logprobs=2, repetition_penalty=1.2),
        _ask(model, "shared-a", temperature=0, presence_penalty=0.5),
        _ask(model, "shared-b", temperature=0.7, seed=31),
        _ask(model, "stop", temperature=1.0, seed=41, max_tokens=2 * _TOKENS),
        _ask(model, "whole", temperature=0.8, seed=51, stream=False),
    )


def with_stop(ask: Ask, answer: str) -> Ask:
    """`ask` with a stop string of several tokens from the midst of its undisturbed `answer`."""
    for start in range(_STOP_FROM, len(answer) - _STOP_LENGTH):
        stop = answer[start : start + _STOP_LENGTH]
        if stop.isascii() and stop.isprintable() and answer.find(stop) == start:
            return replace(ask, body={**ask.body, "stop": [stop]})
    raise StartupError(
        f"The model's answer {answer!r} has nothing to stop at.", remedy="Give another model with --model."
    )


def salted(ask: Ask, salt: str) -> Ask:
    return replace(ask, body={**ask.body, "cache_salt": salt})


def _ask(model: str, name: str, **parameters: object) -> Ask:
    usual = {"model": model, "prompt": _PROMPTS[name], "max_tokens": _TOKENS, "stream": True}
    return Ask(name, {**usual, "ignore_eos": True, "return_token_ids": True, **parameters})
