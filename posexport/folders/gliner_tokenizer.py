"""The tokenizer of a folder of gliner, which is the encoder's where the folder has none, with the library's markers.

Its first releases have neither: the library reads the encoder's tokenizer from the Hub and adds the markers.
"""

from collections.abc import Mapping
from pathlib import Path

from posexport.base.system.extras import require
from posexport.base.system.scratch import scratch_folder
from posexport.checkpoints.config import Config
from posexport.checkpoints.directory import Directory
from posexport.errors import PosexportError

_CONFIG = "tokenizer_config.json"
_UNKNOWN = -1


def tokenizer_files(files: Directory, config: Config, named: Mapping[str, Path], encoder: str) -> dict[str, Path]:
    """The files of the bundle by name, with a tokenizer that has the markers.

    Args:
        files: the folder.
        config: gliner_config.json.
        named: the files that are there.
        encoder: the folder of an encoder that the file only names.

    Raises:
        PosexportError: the tokenizer lacks the markers, and transformers, which adds them, is missing or fails.
    """
    here = _CONFIG in named
    complete = here and _UNKNOWN not in (config.values.get(key, -1) for key in ("class_token_index", "vocab_size"))
    if complete or not (here or files.find(f"{encoder}{_CONFIG}")):
        return dict(named)
    require(f"the tokenizer of {files.path} lacks the markers of gliner, and adding them", "transformers")
    import transformers

    folder = scratch_folder()
    try:
        path = files.path if here else files.path / encoder
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        markers = ["[FLERT]", config.text("ent_token", "<<ENT>>"), config.text("sep_token", "<<SEP>>")]
        tokenizer.add_tokens(markers, special_tokens=True)
        tokenizer.save_pretrained(folder)
    except Exception as err:
        text = " ".join(str(err).split())
        raise PosexportError(
            f"{path}: transformers {transformers.__version__} cannot open the tokenizer: {type(err).__name__}: "
            f"{text[:200]}; put the files of {config.text('model_name', 'the encoder')} there"
        ) from err
    return {**named, **{each.name: each for each in folder.iterdir()}}
