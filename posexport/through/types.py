"""Types that are converted through transformers: those that ``ci/through/run`` proved, and those that are refused.

The conversion of any other type of transformers is attempted.
"""

import json
from importlib.resources import files

#: task that the type's checkpoint in ci/through was proven for, by model_type, with the version TESTED of
#: `posexport.through.library`; ci/through/run.py writes the file
PROVEN: dict[str, str] = json.loads(files(__package__).joinpath("proven.json").read_text(encoding="utf-8"))

_MAXIMUM = "its recurrence keeps a running maximum in addition to its state, for which posexport has no operator"
_TAPS = "the taps of its convolutions are computed from each token, for which posexport has no operator"
_SOUND = "the number of its audio features depends on the values of the mask, and must depend on shapes only"
#: reason of the refusal, by model_type
REFUSED: dict[str, str] = {
    **dict.fromkeys(("rwkv", "xlstm"), _MAXIMUM),
    **dict.fromkeys(("inkling2_loop_text", "inkling2_text"), _TAPS),
    "qwen4_exp_text": "an indexer chooses the tokens that attention reads, by keys that posexport's KV cache lacks",
    "layoutlmv2": "Detectron2 computes its features of the page, and transformers does not contain Detectron2",
    **dict.fromkeys(("audioflamingo3", "granite_speech", "qwen2_5_omni", "qwen2_audio", "qwen3_omni_moe"), _SOUND),
    "instructblip": "its image features depend on the instruction too, and posexport's image graphs have no text input",
    "vits": "the length of its audio depends on durations that it samples, and must depend on shapes only",
    "fnet": "it mixes tokens by Fourier transforms, and its graph did not reach parity",
    "mra": "it computes parts in float32 alone, so that a proof has no float64 reference",
    "nystromformer": "it accepts texts of one length only, and transformers 5.24 fails if a text has padding",
    "nllb-moe": "its experts have a capacity, so that the experts of a token depend on the other texts of a batch",
    "moonshine_streaming": "its encoder attends within windows if there is a mask and to all states if there is none, "
    "and a graph can do only one of the two",
    "openai-gpt": "its attention is code of its own, which no KV cache of posexport's goes through",
    "xclip": "a text has embeddings that are others for every video, and no task of posexport has such embeddings",
    "superpoint": "it returns as many keypoints as it finds: their number depends on the values of the image; export "
    "its encoder and the convolutions of its decoders as a module of yours, and choose the keypoints from the scores",
    "chronos2": "rows of a batch attend to each other if group_ids are equal, and no task of posexport has group_ids",
}
