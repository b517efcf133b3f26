"""Token ids to text, token by token, exact to the byte, where every token stands for bytes."""

import codecs
from collections.abc import Sequence


class Detokenizer:
    """The text of one answer. All it returned, joined, is the whole of the bytes decoded with errors="replace".

    A character whose bytes are spread over several tokens comes with the last of them.
    """

    likely = ""  # no complete character is ever held back

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes; "" for control tokens and for ids without a text."""
        if token_id >= len(self._token_bytes):
            return ""  # embeddings are often padded beyond the vocabulary, and a model may sample such an id
        return self._decoder.decode(self._token_bytes[token_id])

    def flush(self) -> str:
        """What an unfinished last character comes to: U+FFFD, or nothing. The detokenizer is then as new."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
