"""What transformers' tokenizers answer: ``python -m ci.answers.tokenizer_folders.ask FOLDER`` prints it as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

from ci.answers.tokenizer_folders.folders import FOLDERS
from ci.answers.tokenizer_folders.texts import PAIRS, TEXTS


def theirs(folder: Path) -> dict[str, Any]:
    """Ids of texts and pairs, and texts decoded; an error's text where the folder is not loaded."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as err:  # noqa: BLE001 - whatever it raises is its answer
        return {"error": f"{type(err).__name__}: {err}"[:200]}
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    pairs = [tokenizer(*pair)["input_ids"] for pair in PAIRS]
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    decoded = [tokenizer.decode(row, **options) for row in ids]
    return {"class": type(tokenizer).__name__, "ids": ids, "pairs": pairs, "decoded": decoded}


def main(into: Path) -> None:
    import transformers

    answers = {name: theirs(folder.write(into / name)) for name, folder in FOLDERS.items()}
    print(json.dumps({"version": transformers.__version__, "answers": answers}, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
