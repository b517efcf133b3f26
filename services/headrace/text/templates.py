"""Chat templates: messages to the prompt text of one model.

The template comes from the model's files and runs sandboxed. Knows no tokens, but for one thing: it makes sure that
the text of a message cannot be mistaken for the control tokens that the template itself writes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.core.errors import InvalidRequest, StartupError
from headrace.core.generation import Message

# A role may become part of a control token in a template, so it cannot be free text.
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PRIVATE_USE = (*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE))


@dataclass(frozen=True, slots=True)
class Rendered:
    """text: the prompt. stand_ins: characters in it that stand for others (as for `str.translate`), to be put back
    once control tokens were found: they keep the text of messages from spelling any."""

    text: str
    stand_ins: Mapping[int, str]


class ChatTemplate:
    """One compiled template. Safe to use from many threads."""

    def __init__(self, source: str, *, bos_token: str, eos_token: str, control_tokens: Iterable[str]) -> None:
        """control_tokens: texts that no message may smuggle in. Raises StartupError for a template that is broken."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise StartupError(
                f"The model's chat template is broken in line {error.lineno}: {error.message}.",
                remedy="Use another version of the model's files.",
            ) from error
        self._source_characters = frozenset(source)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._disguise = _Disguise(control_tokens)

    def render(self, messages: Sequence[Message]) -> Rendered:
        """The prompt that opens an assistant's turn after `messages`. Raises InvalidRequest if there can be none."""
        if not messages:
            raise InvalidRequest("messages must not be empty.", param="messages")
        for message in messages:
            if message.role not in ROLES:
                raise InvalidRequest(
                    f"{message.role!r} is not a role.", remedy=f"Use one of {', '.join(ROLES)}.", param="messages"
                )
        used = self._source_characters.union(*(message.content for message in messages))
        stand_ins = self._disguise.stand_ins(used)
        turns = [{"role": each.role, "content": self._disguise.put_on(each.content, stand_ins)} for each in messages]
        return Rendered(self._run(turns), {ord(stand_in): original for original, stand_in in stand_ins.items()})

    def _run(self, turns: list[dict[str, str]]) -> str:
        try:
            return self._template.render(
                messages=turns, add_generation_prompt=True, tools=None, documents=None, **self._tokens
            )
        except TemplateError as error:
            raise InvalidRequest(
                f"The model's chat template refuses the messages: {error}", param="messages"
            ) from error
        except Exception as error:  # a template is a program: it can fail in any way
            raise InvalidRequest(
                f"The model's chat template cannot render the messages ({type(error).__name__}).",
                remedy="Check the order of the roles.",
                param="messages",
            ) from error


class _Disguise:
    """Replaces one character of whatever spells a control token, or could together with the text around it."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        self._tokens = sorted(filter(None, control_tokens), key=len, reverse=True)
        self._alphabet = sorted(set("".join(self._tokens)))
        cuts = [(token, cut) for token in self._tokens for cut in range(1, len(token))]
        self._beginnings = tuple({token[:cut] for token, cut in cuts})
        self._endings = tuple({token[cut:] for token, cut in cuts})

    def stand_ins(self, used: Set[str]) -> dict[str, str]:
        """For each character of control tokens a private-use one that is not in `used`. Raises InvalidRequest."""
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        found = dict(zip(self._alphabet, free, strict=False))
        if len(found) < len(self._alphabet):
            raise InvalidRequest(
                "The messages use too many of Unicode's private-use characters.", remedy="Use fewer.", param="messages"
            )
        return found

    def put_on(self, content: str, stand_ins: Mapping[str, str]) -> str:
        for token in self._tokens:
            while token in content:  # again for a token that overlaps itself
                content = content.replace(token, stand_ins[token[0]] + token[1:])
        if content.endswith(self._beginnings):
            at = min(len(content) - len(begun) for begun in self._beginnings if content.endswith(begun))
            content = content[:at] + stand_ins[content[at]] + content[at + 1 :]
        inside = content and any(content in token for token in self._tokens)
        if inside or content.startswith(self._endings):
            content = stand_ins[content[0]] + content[1:]
        return content


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationTag(Extension):
    """`{% generation %}`, by which templates mark the assistant's words for training: here just its contents."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
