"""Computes tests/golden_chat.json anew: what transformers' ``apply_chat_template`` makes of messages.

The file is its own table. ``tokenizer``: a tokenizer.json that puts <s> before every text. ``config``: its
tokenizer_config.json. ``templates``: by name, in the manner of well-known ones (headers; marks with a default system
message; alternating roles, without a system message; a macro, tools, loop controls and contents in pieces). ``cases``:
template and messages are read, ``prompt`` and ``ids`` or, where the template refuses them, ``refused`` are written.

Run it in the environment of `ci/golden/make`; posexport is not imported:

    .venv-golden/bin/python ci/golden/chat.py tests/golden_chat.json
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import transformers
from jinja2 import TemplateError
from transformers import AutoTokenizer

VERSION = "4.57.6"


def loaded(content: dict[str, Any], template: str) -> Any:
    """transformers' tokenizer with a template."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_text(json.dumps(content["tokenizer"]))
        Path(folder, "tokenizer_config.json").write_text(json.dumps(content["config"]))
        Path(folder, "chat_template.jinja").write_text(content["templates"][template])
        Path(folder, "config.json").write_text(json.dumps({"model_type": "llama"}))
        return AutoTokenizer.from_pretrained(folder)


def computed(tokenizer: Any, case: dict[str, Any]) -> dict[str, Any]:
    """A case with what transformers makes of its messages."""
    found = {key: case[key] for key in ("template", "chat", "messages")}
    try:
        for key, tokenize in (("prompt", False), ("ids", True)):
            found[key] = tokenizer.apply_chat_template(case["messages"], tokenize=tokenize, add_generation_prompt=True)
    except TemplateError as err:
        found["refused"] = str(err)
    return found


def main(path: Path) -> None:
    """Write the file anew."""
    if transformers.__version__ != VERSION:
        sys.exit(f"this needs transformers {VERSION}, found {transformers.__version__}")
    content = json.loads(path.read_text(encoding="utf-8"))
    tokenizers = {name: loaded(content, name) for name in content["templates"]}
    content["cases"] = [computed(tokenizers[case["template"]], case) for case in content["cases"]]
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
