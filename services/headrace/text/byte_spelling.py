"""The spelling of byte-level BPE: each token stands for bytes, whatever stands around it. Knows no texts."""

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken, Tokenizer

from headrace.text.detokenize import Detokenizer


class ByteSpelling:
    """token_bytes: what each id stands for in an answer, b"" for control tokens. pieces: the same, but control tokens
    stand for their names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.token_bytes = _bytes_by_id(tokenizer, added)
        self.pieces = list(self.token_bytes)
        for number, token in added.items():
            self.pieces[number] = token.content.encode()

    def piece(self, token_id: int) -> bytes:
        """What a token stands for, control tokens for their names; b"" for ids without a text."""
        return self.pieces[token_id] if token_id < len(self.pieces) else b""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens by their names."""
        return b"".join(map(self.piece, ids)).decode(errors="replace")

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """A new one, which shows no control tokens. No prompt changes how an answer is spelled."""
        return Detokenizer(self.token_bytes)


def _bytes_by_id(tokenizer: Tokenizer, added: Mapping[int, AddedToken]) -> list[bytes]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    alphabet = _byte_alphabet()
    size = max([*vocabulary.values(), *added], default=-1) + 1
    table = [b""] * size
    for text, number in vocabulary.items():
        try:
            table[number] = bytes([alphabet[character] for character in text])
        except KeyError:  # a token that is not written in the alphabet stands for its own text
            table[number] = text.encode()
    for number, token in added.items():
        table[number] = b"" if token.special else token.content.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 for itself, the others moved up from U+0100 in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(0x100 + place): byte for place, byte in enumerate(moved)}
