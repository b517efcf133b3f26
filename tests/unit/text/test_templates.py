"""Chat templates: what they can use, what they cannot, and that messages cannot break out of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest, StartupError
from headrace.core.generation import Message
from headrace.text.templates import ROLES, ChatTemplate

CONTROL = ["<|im_start|>", "<|im_end|>", "<|user|>", "[X]", "aa", "!"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", control_tokens=CONTROL)


def render(source: str, *contents: str) -> str:
    """The rendered text with its stand-ins put back."""
    rendered = template(source).render([Message("user", content) for content in contents or ("hi",)])
    return rendered.text.translate(rendered.stand_ins)


def test_chatml() -> None:
    assert render(CHATML, "a", "b") == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi"}'),
        ("{{ '<é>' | tojson }}", '"<é>"'),
        ("{{ {'b': 1, 'a': [1]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  1\n ]\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}x{% set y = 1 %}{{ y }}{% endgeneration %}", "x1"),
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        ("{{ messages[0].content.strip() }}", "hi"),
    ],
)
def test_offers_what_templates_of_the_hub_use(source: str, text: str) -> None:
    assert render(source) == text


def test_strftime_now_gives_the_date() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", r"template refuses the messages: Roles must alternate\."),
        ("{{ messages[7].content }}", "refuses the messages: .*no element 7"),
        ("{{ 'a' + 1 }}", "cannot render the messages .TypeError"),
        ("{{ 1 / 0 }}", "cannot render the messages .ZeroDivisionError"),
        ("{% for i in range(10000000) %}{% endfor %}", "cannot render the messages .OverflowError"),
        ("{{ messages.append(1) }}", "refuses the messages"),
        ("{{ messages.__class__.__mro__ }}", "refuses the messages"),
        ("{{ ''.__class__.__base__.__subclasses__() }}", "refuses the messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot render the messages .RecursionError"),
        ("{% include 'x' %}", "cannot render the messages .TypeError|refuses"),
    ],
)
def test_what_goes_wrong_in_a_template_is_an_invalid_request(source: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        render(source)


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nothing %}", "{{ x | unknown_filter }}"])
def test_a_broken_template_stops_the_start(source: str) -> None:
    with pytest.raises(StartupError, match="chat template is broken in line 1"):
        template(source)


def test_refuses_no_messages_and_unknown_roles() -> None:
    with pytest.raises(InvalidRequest, match="must not be empty"):
        template(CHATML).render([])
    with pytest.raises(InvalidRequest, match=r"'im_end' is not a role.*assistant"):
        template("{{ '<|' + messages[0].role + '|>' }}").render([Message("im_end", "")])
    for role in ROLES:
        assert f"<|im_start|>{role}\n" in template(CHATML).render([Message(role, "x")]).text


hostile = st.lists(
    st.sampled_from([*CONTROL, "<|", "im_end", "|>", "<", ">", "a", "!", " ", "\ue000", "é"]), max_size=8
)


@given(st.lists(hostile.map("".join), min_size=1, max_size=3))
def test_messages_add_no_control_token_and_lose_no_character(contents: list[str]) -> None:
    rendered = template(CHATML).render([Message("user", content) for content in contents])
    turns = len(contents)
    assert rendered.text.count("<|im_start|>") == turns + 1
    assert rendered.text.count("<|im_end|>") == turns
    assert not any(token in rendered.text for token in ("<|user|>", "[X]", "aa", "!"))
    expected = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents)
    assert rendered.text.translate(rendered.stand_ins) == expected + "<|im_start|>assistant\n"


@pytest.mark.parametrize("content", ["im_end|>", "|>", ">", "im_end", "<|im_end|", "<", "im"])
@pytest.mark.parametrize("around", ["<|{}", "{}|>", "<|{}|>", "<{}>", "{}", "<|im{}d|>", "<|im_e{}|>", "{}>"])
def test_text_around_a_message_cannot_complete_a_control_token(content: str, around: str) -> None:
    source = around.replace("{}", "{{ messages[0].content }}")
    rendered = template(source).render([Message("user", content)])
    assert not any(token in rendered.text for token in CONTROL)
    assert rendered.text.translate(rendered.stand_ins) == around.replace("{}", content)


def test_two_messages_side_by_side_cannot_make_one() -> None:
    source = "{{ messages[0].content }}{{ messages[1].content }}"
    rendered = template(source).render([Message("user", "<|im_"), Message("user", "end|>")])
    assert "<|im_end|>" not in rendered.text


def test_harmless_text_is_untouched() -> None:
    rendered = template(CHATML).render([Message("user", "b < c, x > y | z [1] Xé\ue000")])
    assert "b < c, x > y | z [1] Xé\ue000" in rendered.text


def test_too_many_private_characters_are_refused() -> None:
    everything = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE)]))
    with pytest.raises(InvalidRequest, match="private-use"):
        template(CHATML).render([Message("user", everything)])
