"""Golden answers: ``python -m ci.answers.tokenizer_folders.golden OF_4.json OF_5.json``, each printed by ``ask``.

What transformers 5 answers is kept where it differs from 4.
"""

import json
import sys
from pathlib import Path
from typing import Any

from ci.answers.tokenizer_folders.bases import KEPT

FILE = KEPT / "answers.json"


def merged(of_4: dict[str, Any], of_5: dict[str, Any]) -> dict[str, Any]:
    four, five = of_4["answers"], of_5["answers"]
    other = {name: answer for name, answer in five.items() if _told(answer) != _told(four[name])}
    return {"versions": [of_4["version"], of_5["version"]], "4": four, "5": other}


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "class"}


if __name__ == "__main__":
    content = merged(*(json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:3]))
    FILE.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
