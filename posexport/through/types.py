"""Types that are converted through transformers: those that ``ci/through/run`` proved, and those that are refused.

The conversion of any other type of transformers is attempted.
"""

import json
from importlib.resources import files

#: task that the type's checkpoint in ci/through was proven for, by model_type, with the version TESTED of
#: `posexport.through.library`; ci/through/run.py writes the file
PROVEN: dict[str, str] = json.loads(files(__package__).joinpath("proven.json").read_text())

_MAXIMUM = "its recurrence keeps a running maximum beside its state, for which posexport has no operator"
_TAPS = "the taps of its convolutions follow from each token, for which posexport has no operator"
_SOUND = "it keeps as many features of a sound as the mask says, a number that depends on the values of the mask"
_PARTS = "it cuts an image into as many parts as its size says, one after the other in Python"
#: reason of the refusal, by model_type
REFUSED: dict[str, str] = {
    **dict.fromkeys(("rwkv", "xlstm"), _MAXIMUM),
    **dict.fromkeys(("inkling2_loop_text", "inkling2_text"), _TAPS),
    "qwen4_exp_text": "an indexer chooses the tokens that its attention reads, by keys that no KV cache here holds",
    "layoutlmv2": "its features of the page come from Detectron2, which transformers alone does not have",
    **dict.fromkeys(("audioflamingo3", "granite_speech", "qwen2_5_omni", "qwen2_audio", "qwen3_omni_moe"), _SOUND),
    **dict.fromkeys(("llava_next", "llava_onevision"), _PARTS),
    "instructblip": "its queries of an image read the instruction too, which no graph of posexport's gives them",
    "vits": "the length of its sound depends on durations that it draws, and a graph's on sizes of inputs alone",
    "fnet": "it mixes tokens by Fourier transforms, and its graph missed parity",
    "mra": "it computes parts in float32 alone, so that there is no float64 to prove it by",
    "nystromformer": "it takes texts of one length alone, and transformers 5.24 fails where one has padding",
    "nllb-moe": "which of its experts read a token depends on the other texts of a batch, whose tokens fill them",
    "moonshine_streaming": "its encoder attends within windows with a mask and to all states without one, and a graph "
    "computes one of both",
    "openai-gpt": "its attention is code of its own, which no KV cache of posexport's goes through",
    "xclip": "its embeddings of a text are others for every video, which no task of posexport's has",
    "superpoint": "it returns as many keypoints as it finds, a number that depends on the values of the image",
    "chronos2": "rows of a batch attend to one another as group_ids say, which no task of posexport's has",
    "timesfm": "it reads a list of series of other lengths, one after the other in Python",
}
