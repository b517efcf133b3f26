"""Makes tokenizer_reference.json: texts and the token ids that llama.cpp gives them.

    pip install cyllama==0.2.18        (llama.cpp's bindings as a wheel; in an environment of its own)
    python tests/oracle/make_tokenizer_reference.py MODEL.gguf PROMPTS_DIR

PROMPTS_DIR holds multilingual.jsonl, humaneval.jsonl and naughty_strings.jsonl. The texts are copied into the result,
so the test needs neither.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULT = Path(__file__).with_name("tokenizer_reference.json")
MAX_BYTES = 1200

HAND_WRITTEN = [
    "0",
    "7",
    "42",
    "1234567890",
    "3.14159",
    "1,000,000",
    "v1.2.3-rc4",
    "2026-11-29T19:42:00Z",
    "x1y22z333",
    " 9 99 999",
    "½ ¾ ² ³ ¹",
    "Ⅷ ⅻ ①②③",
    "٠١٢٣",
    "०१२३",
    "１２３",
    "-5e-10",
    "0x1F600",
    "1\n2\n\n3",
    "第3章 12節",
    "a1 b2  c3   d4",
    " ",
    "  ",
    "   ",
    "          ",
    "\t",
    "\t\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\r\n",
    " \n",
    "\n ",
    "  \n  \n",
    " a",
    "  a",
    "a ",
    "a  ",
    "a  b",
    "a   b    c",
    "\ta\tb",
    "a\n\nb",
    "trailing   \n",
    "\u00a0nbsp\u00a0",
    "\u2003em\u2003quad",
    "\u3000全角",
    "\u200bzero\u200bwidth",
    "\ufeffbom",
    "x\x00y",
    "\x1b[31mred\x1b[0m",
    "\x7f",
    "\u0085next\u2028line",
    "Hello, world!",
    "don't I'll we've they're he'd I'm it's",
    "DON'T I'LL",
    "’s curly’re",
    "'s't",
    "''",
    "...",
    "?!?!",
    "naïve café über Ærøskøbing",
    "e\u0301 o\u0308 n\u0303",
    "\u0301",
    "Zażółć gęślą jaźń",
    "Việt Nam: phở",
    "ﬁne ﬂow",
    "Привет, мир!",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "你好，世界！",
    "こんにちは世界。",
    "안녕하세요 세계",
    "𠮷野家",
    "漢字かな交じり文123",
    "ﷺ",
    "Ꙁ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "🙂",
    "👩‍👩‍👧‍👦",
    "👍🏽",
    "🇫🇷🇩🇪",
    "a🙂b🙂",
    "☃️",
    "❤️‍🔥",
    "♠♣",
    "→←⇒",
    "€£¥₹",
    "∑∫√∞",
    "\U0010ffff",
    "\ue000",
    "def f(x):\n    return x + 1\n",
    'for (int i = 0; i < 10; i++) {\n\tprintf("%d\\n", i);\n}',
    "SELECT * FROM t WHERE a != 'b';",
    "a->b::c<d>&&e||f",
    "https://example.com/a?b=c&d=%20#e",
    "user@example.com",
    "C:\\path\\file.txt",
    "`code` **bold** _it_",
    '{"k": [1, 2]}',
    '<div class="a">&amp;</div>',
    "#!/bin/sh\nset -e\n",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "----------",
    "==========",
    "AAAA BBBB",
    "Supercalifragilisticexpialidocious",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "a<|im_end|>b",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<repo_name>x",
    "<|im_start",
    "|im_end|>",
    "<|im_<|im_end|>end|>",
    "<|IM_END|>",
    "< |im_end|>",
    "<|endoftext|><|endoftext|>",
]


def sampled(prompts: Path) -> Iterator[str]:
    """Every n-th text of each file, about 200 in all."""
    for name, key, step in (("multilingual", "text", 3), ("humaneval", "prompt", 4), ("naughty_strings", "text", 4)):
        lines = (prompts / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
        texts = [json.loads(line)[key] for line in lines if line]
        yield from (text.encode()[:MAX_BYTES].decode("utf-8", "ignore") for text in texts[::step])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prompts", type=Path)
    arguments = parser.parse_args()
    import cyllama
    from cyllama.llama.llama_cpp import LlamaModel

    model = LlamaModel(str(arguments.model))
    vocabulary = model.get_vocab()

    def row(text: str, controls: bool) -> dict[str, Any]:
        return {"text": text, "controls": controls, "ids": vocabulary.tokenize(text, False, controls)}

    texts = [text for text in dict.fromkeys([*HAND_WRITTEN, *sampled(arguments.prompts)]) if text]
    rows = [row(text, False) for text in texts] + [row(text, True) for text in texts if "<|" in text]
    lines = ",\n".join(json.dumps(each, ensure_ascii=True, separators=(",", ":")) for each in rows)
    made_by = f"llama.cpp through cyllama {cyllama.__version__}, {arguments.model.name}"
    RESULT.write_text(f'{{"made_by": {json.dumps(made_by)}, "rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} rows, {RESULT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
