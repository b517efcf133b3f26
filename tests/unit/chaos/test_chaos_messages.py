"""The words of the chaos socket: every one survives its bytes, and what cannot be meant cannot be said."""

import pytest

from headrace.chaos import messages
from headrace.chaos.messages import Damage, FrameKind, Phase, WireFault

SAID = [
    messages.Hold(Phase.MID_CHUNK, "cell-7", 32),
    WireFault(Damage.REORDERED, FrameKind.END, 2, 0.25, "cell-7"),
    messages.Release(),
    messages.Disarm(),
    messages.Advertise("10.77.0.1:9/0011223344556677"),
    messages.Arrived("decode-0", "a1", 42),
    messages.Opened("127.0.0.1:9/0011223344556677"),
    messages.Obeyed(),
    messages.Held("cell-7", 3, Phase.BEFORE_COMMIT),
    messages.LetGo("cell-7", 3, True),
    messages.Struck(Damage.LOST, "00ff", 65535),
]


@pytest.mark.parametrize("words", SAID, ids=lambda words: type(words).__name__)
def test_words_survive_their_bytes(words: messages.Order | messages.News) -> None:
    packed = messages.pack(words)
    (length,) = messages.LENGTH.unpack_from(packed)
    assert length == len(packed) - messages.LENGTH.size
    assert messages.unpack(packed[messages.LENGTH.size :]) == words


def test_every_word_is_tested() -> None:
    assert {type(words) for words in SAID} == set((messages.Order | messages.News).__args__)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"word":"fire"}', b'{"word":"hold","phase":"soon"}'])
def test_other_words_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        messages.unpack(body)


@pytest.mark.parametrize("kind", [Damage.TRUNCATED, Damage.CORRUPTED, Damage.CORRUPTED_HEADER])
def test_a_frame_of_no_bytes_has_none_to_damage(kind: Damage) -> None:
    with pytest.raises(ValueError, match="no bytes"):
        WireFault(kind, FrameKind.MEET)
