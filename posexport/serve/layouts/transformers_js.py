"""``--layout transformers.js``: what ``from_pretrained`` of transformers.js (4.3) loads, in one precision or several.

Graphs are in ``onnx/`` and named by their precision (``dtype: "q8"`` loads ``model_quantized.onnx``). Large weights are
in data files, which config.json has to announce (src/models/session.js, src/utils/dtypes.js and
src/utils/model-loader.js there). An encoder-decoder is ``encoder_model.onnx`` and ``decoder_model_merged.onnx``, which
it feeds no mask of the decoder's tokens.
"""

import json
from dataclasses import replace
from pathlib import Path

import msgspec

from posexport.base.spec import NUM_LOGITS
from posexport.conversion.export.layout import Layout
from posexport.conversion.export.save import OwnFile
from posexport.models.definition import Part
from posexport.models.encoder_decoder import EncoderDecoderModel
from posexport.serve.layouts.renamed import renamed
from posexport.serve.layouts.shared import CONFIG, check_client, fed, in_one_part, keeps_states, read_json
from posexport.serve.layouts.state_names import LISTS, OLDER, client_names, older
from posexport.sources.source import Source

FOLDER = "onnx"
MODEL, ENCODER, MERGED = f"{FOLDER}/model.onnx", f"{FOLDER}/encoder_model.onnx", f"{FOLDER}/decoder_model_merged.onnx"
_SUFFIX = "_data"
_SETTINGS, _EXTERNAL = "transformers.js_config", "use_external_data_format"


def arrange(source: Source) -> Source:
    """``source`` cut into the graphs of transformers.js; PosexportError for a model that it does not have."""
    check_client(source, "transformers.js", "transformers.js")
    if source.parts and isinstance(source.module, EncoderDecoderModel):
        cut = source.module.wiring
        return msgspec.structs.replace(source, parts=[cut.encoder_alone(ENCODER), *cut.merged(MERGED)])
    if keeps_states(source):
        return _with_states(source)
    if source.parts:  # a vision encoder, an embedding and a decoder, under the names that transformers.js has for them
        return msgspec.structs.replace(source, parts=[_in_folder(part) for part in source.parts])
    return in_one_part(msgspec.structs.replace(source, inputs=fed(source.inputs)), MODEL)


def _with_states(source: Source) -> Source:
    """``source`` with the client's names of states and KV caches."""
    config = read_json(source.files.get(CONFIG))
    names = client_names(source, config.get("text_config", config))
    if source.parts:
        cut = msgspec.structs.replace(source, parts=[_in_folder(part) for part in source.parts])
    else:
        cut = in_one_part(msgspec.structs.replace(source, inputs=fed(source.inputs)), MODEL)
    return renamed(cut, names)


def _in_folder(part: Part) -> Part:
    return replace(part, spec=msgspec.structs.replace(part.spec, file=f"{FOLDER}/{part.spec.file}"))


def write(directory: Path, _source: Source) -> None:
    """Announce the data files in ``config.json``, and name kinds of layers as the client does."""
    path = directory / CONFIG
    config = read_json(path)
    settings = config.get(_SETTINGS)
    settings = {key: value for key, value in settings.items() if key != _EXTERNAL} if isinstance(settings, dict) else {}
    # of all precisions in the directory
    external = {file.name.removesuffix(_SUFFIX): 1 for file in sorted((directory / FOLDER).glob(f"*.onnx{_SUFFIX}"))}
    settings |= {_EXTERNAL: external} if external else {}
    changed = {key: value for key, value in config.items() if key != _SETTINGS}
    changed |= {_SETTINGS: settings} if settings else {}
    if config.get("model_type") in OLDER:
        changed |= {key: older(words) for key in LISTS if (words := config.get(key))}
    if changed != config:
        path.write_text(json.dumps(changed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")


TRANSFORMERS_JS = Layout(
    arrange=arrange,
    store=lambda _: OwnFile(_SUFFIX),
    write=write,
    names_precision=True,
    microsoft=frozenset({"MatMulNBits"}),
    # 1 in generate, else 0 (setNumLogitsToKeep of src/models/modeling_utils.js), of sessions that require it
    fed=frozenset({NUM_LOGITS}),
)
