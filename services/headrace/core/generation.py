"""What a caller asks for and gets: the messages of the public `Inference` service."""

from dataclasses import dataclass, field
from enum import Enum

from headrace.core.errors import InvalidRequest
from headrace.core.logprobs import TokenLogprob
from headrace.core.resume import ResumePoint
from headrace.core.sampling import SamplingParams

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages for the model's chat template, which is told to open an assistant turn."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text. The tokenizer adds what the model wants at the start, if anything."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, used as they are."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One generation. id: unique, chosen by the caller's side of the border. cache_salt: isolates prefix reuse.

    priority: lower ones are served first where they compete for a worker, and give way last; 0 is the usual one.
    resume: empty, or `ResumePoint.encode()` from a chunk of an earlier try with the same prompt and sampling;
    only what follows that chunk is generated and returned.
    echo: the first chunk tells the prompt as the model reads it.
    """

    id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    timeout_s: float = DEFAULT_TIMEOUT_S
    cache_salt: str = ""
    resume: bytes = b""
    priority: int = 0
    echo: bool = False

    def __post_init__(self) -> None:
        if not -(2**31) <= self.priority < 2**31:
            raise InvalidRequest("priority must be a signed 32-bit integer.", param="priority")


class FinishReason(Enum):
    """OpenAI's words for the two ways an answer ends well."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. cached_tokens: those prompt tokens whose KV was found and not computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """A prompt as the model read it. text: the caller's own where the prompt was text, else that of all its tokens.

    pieces: for each of token_ids, what it stands for; see TokenLogprob.
    """

    text: str
    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of an answer. Texts of a choice's chunks concatenate to the answer.

    position: index among the choice's generated tokens of the first of `token_ids`. Text may lag behind ids
    (an incomplete character, a possible stop string). The last chunk has finish_reason and usage.
    logprobs: one for each of `token_ids` where sampling.logprobs asks for them, else empty. prompt_logprobs: in a
    choice's first chunk where sampling.prompt_logprobs asks for them, one for each prompt token but the first.
    prompt: in the same chunk, where the request asks for an echo. A stream that goes on from a resume point has
    neither of the two: the stream before it had.
    """

    choice: int
    position: int
    text: str
    token_ids: tuple[int, ...]
    resume: ResumePoint
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    prompt: PromptEcho | None = None


@dataclass(frozen=True, slots=True)
class Tokenized:
    """token_ids of a prompt as the model would read it; max_model_len: the context they must fit into."""

    token_ids: tuple[int, ...]
    max_model_len: int


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model that can be asked for by `id`. created: Unix seconds."""

    id: str
    max_model_len: int
    created: int
