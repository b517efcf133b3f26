"""TextModel: all that the router does between text and token ids for one model."""

from collections.abc import Sequence

from headrace.core.errors import InvalidRequest
from headrace.core.generation import ChatPrompt, Prompt, TextPrompt
from headrace.core.vocabulary import Vocabulary
from headrace.modelfiles.files import ModelFiles
from headrace.text.answer_text import Detokenizing
from headrace.text.templates import ChatTemplate
from headrace.text.tokenizer import ModelTokenizer


class TextModel:
    """One model's template and tokenizer. Every method may be called from any thread; `encode` may take long."""

    def __init__(
        self, tokenizer: ModelTokenizer, template: ChatTemplate | None, vocabulary: Vocabulary, bos: int | None
    ):
        """bos: the id that text prompts begin with, None where they do not."""
        self._tokenizer = tokenizer
        self._template = template
        self._bos = bos
        self.vocabulary = vocabulary

    @staticmethod
    def load(files: ModelFiles) -> "TextModel":
        """Raises StartupError where tokenizer or template cannot be used."""
        tokenizer = ModelTokenizer(files.tokenizer_json)
        template = None
        if files.chat_template is not None:
            template = ChatTemplate(
                files.chat_template,
                bos_token=files.bos_token,
                eos_token=files.eos_token,
                control_tokens=tokenizer.control_ids,
            )
        bos = tokenizer.control_ids.get(files.bos_token) if files.add_bos else None
        return TextModel(tokenizer, template, files.vocabulary, bos)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids the model is to read. Control tokens count in a raw text and in the template, not in messages.

        Raises InvalidRequest for an empty prompt, ids that the model does not have, and messages that the model's
        template refuses.
        """
        ids: Sequence[int]
        if isinstance(prompt, ChatPrompt):
            ids = self._encode_chat(prompt)
        elif isinstance(prompt, TextPrompt):
            ids = self._encode_text(prompt)
        else:
            ids = prompt.token_ids
        if not ids:
            raise InvalidRequest("The prompt is empty.", remedy="Send at least one token.", param="prompt")
        self._require_known(ids, "prompt")
        return tuple(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens by their names. Raises InvalidRequest for ids the model does not have."""
        self._require_known(ids, "tokens")
        return self._tokenizer.spelling.decode(ids)

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizing:
        """A new one, for one answer to `prompt`, which shows no control tokens.

        The answer's text is what the text of prompt and answer has beyond that of the prompt: it keeps the space of
        its first word unless nothing but control tokens stands before it. Bytes never join over that border.
        """
        return self._tokenizer.spelling.detokenizer(prompt)

    def piece(self, token_id: int) -> bytes:
        """What a token stands for: bytes, or a control token's name; b"" for ids without a text."""
        return self._tokenizer.spelling.piece(token_id)

    def word_ids(self, word: str) -> tuple[tuple[int, ...], ...]:
        """The ids by which `word` is written within a text and, where they differ, after a space.

        Spaces before the word are ignored unless it is nothing else, as vLLM does for bad_words.
        """
        bare = word.lstrip()
        alone = tuple(self._tokenizer.encode_inside(bare or word))
        spaced = tuple(self._tokenizer.encode_inside(f" {bare}")) if bare else alone
        return (alone,) if spaced[-len(alone) :] == alone else (alone, spaced)

    def _encode_chat(self, prompt: ChatPrompt) -> list[int]:
        if self._template is None:
            raise InvalidRequest(
                "This model has no chat template.", remedy="Send a text prompt to /v1/completions.", param="messages"
            )
        rendered = self._template.render(prompt.messages)
        return self._tokenizer.encode_with_controls(rendered.text, rendered.stand_ins)

    def _encode_text(self, prompt: TextPrompt) -> list[int]:
        ids = self._tokenizer.encode_with_controls(prompt.text)
        if self._bos is None or ids[:1] == [self._bos]:
            return ids
        return [self._bos, *ids]

    def _require_known(self, ids: Sequence[int], param: str) -> None:
        size = self.vocabulary.size
        if ids and (min(ids) < 0 or max(ids) >= size):
            unknown = next(token for token in ids if not 0 <= token < size)
            raise InvalidRequest(f"Token {unknown} lies outside the vocabulary of {size} tokens.", param=param)
