"""Writes tests/golden_chat.json: prompts and token ids that transformers' ``apply_chat_template`` makes of messages.

Run it in the environment of `ci/golden/make`; posexport is not imported:

    .venv-golden/bin/python ci/golden/chat.py tests/golden_chat.json

``tokenizer``: a tokenizer.json that puts <s> before every text. ``config``: its tokenizer_config.json. ``templates``:
by name, templates written for this file in the manner of well-known ones. ``cases``: template, messages, and what
transformers makes of them: ``prompt`` and ``ids``, or, where the template refuses them, ``refused``.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import transformers
from jinja2 import TemplateError
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer

VERSION = "4.57.6"
#: headers and an end of turn, the first message behind <s>, the content trimmed
HEADERS = """{%- set first = true %}
{% for message in messages %}
    {% set text = '<|header|>' + message['role'] + '<|/header|>\n\n' + message['content'] | trim + '<|end|>' %}
    {% if loop.index0 == 0 %}{% set text = bos_token + text %}{% endif %}
    {{- text }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}
"""
#: a default system message, which needs no message to name it, and turns between two marks
MARKS = """{% if messages[0].role != 'system' %}<|start|>system
You are a helpful assistant.<|end|>
{% endif %}
{%- for message in messages -%}
<|start|>{{ message.role }}
{% if message.role == 'assistant' -%}
    {% generation %}{{ message.content }}{% endgeneration %}
{%- else %}{{ message.content }}{% endif %}<|end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{% endif -%}"""
#: no system message, strictly alternating roles, the assistant called otherwise
ALTERNATING = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<|start|>' + role + '\n' + message['content'] | trim + '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>model\n' }}{% endif %}"""
#: a macro, a namespace, tojson, loop controls, contents in pieces, tools that are none, tokens that are none
TOOLS = """{%- macro piece(content) -%}
    {%- if content is string -%}{{ content }}{%- else -%}
        {%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set state = namespace(turns=0) -%}
{%- if tools is not none %}{{ tools | tojson }}{% endif -%}
{%- for message in messages -%}
    {%- if message.role == 'note' %}{% continue %}{% endif -%}
    {%- set state.turns = state.turns + 1 -%}
    [{{ state.turns }}:{{ message.role }}] {{ piece(message.content) }}{{ eos_token }}{{ cls_token }}
    {%- if message.meta is defined %} {{ message.meta | tojson }}{% endif %}
{%- endfor -%}
{%- if add_generation_prompt %}[{{ state.turns + 1 }}:assistant]{% endif -%}"""
TEMPLATES = {"headers": HEADERS, "marks": MARKS, "alternating": ALTERNATING, "tools": TOOLS}
USER, ASSISTANT, SYSTEM = (
    {"role": "user", "content": "  hello there "},
    {"role": "assistant", "content": "hi <b>\n"},
    {"role": "system", "content": "be brief"},
)
PIECES = {
    "role": "user",
    "content": [{"type": "text", "text": "hello "}, {"type": "image"}, {"type": "text", "text": "you"}],
}
META = {"role": "assistant", "content": "hi", "meta": {"a": "<é>", "b": [1, None]}}
CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, USER],
    "twice": [USER, USER],
    "pieces": [PIECES, META, {"role": "note", "content": "x"}, USER],
}


def tokenizer() -> Tokenizer:
    """One of words and marks, which puts <s> before a text."""
    marks = ["<unk>", "<s>", "</s>", "<|header|>", "<|/header|>", "<|start|>", "<|end|>"]
    words = [
        "hello",
        "there",
        "hi",
        "be",
        "brief",
        "user",
        "assistant",
        "system",
        "model",
        "you",
        "are",
        "a",
        "helpful",
    ]
    words += list(':[]123<>b{},"')
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*marks, *words])}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.add_special_tokens(marks)
    return made


def main(target: Path) -> None:
    if transformers.__version__ != VERSION:
        sys.exit(f"this needs transformers {VERSION}, found {transformers.__version__}")
    words = tokenizer()
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
    }
    cases: list[dict[str, Any]] = []
    for name, template in TEMPLATES.items():
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "tokenizer.json").write_text(words.to_str())
            Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
            Path(folder, "chat_template.jinja").write_text(template)
            Path(folder, "config.json").write_text(json.dumps({"model_type": "llama"}))
            loaded = AutoTokenizer.from_pretrained(folder)
        for chat, messages in CHATS.items():
            case: dict[str, Any] = {"template": name, "chat": chat, "messages": messages}
            try:
                case["prompt"] = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
                case["ids"] = loaded.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
            except TemplateError as err:
                case["refused"] = str(err)
            except TypeError:
                continue  # a text was needed: every template fails in words of its own
            cases.append(case)
    content = {"tokenizer": json.loads(words.to_str()), "config": config, "templates": TEMPLATES, "cases": cases}
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {sum('refused' in case for case in cases)} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
