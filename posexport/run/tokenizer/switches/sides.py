"""``padding_side``, ``truncation_side`` and ``pad_token``: fields of padding and truncation in tokenizer.json.

Stored values are often leftovers of the last call before the file was saved (128 tokens), which transformers resets in
each call. Here truncation follows the model's text rules, and padding is to the longest text of a batch, on the right
where padding before a text would change what the model computes for it.
"""

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.switch import Content, Switch, vocabulary


def apply(content: Content, settings: Settings) -> list[str]:
    truncation, padding = content.get("truncation"), content.get("padding")
    side = settings.side(
        "truncation_side", "right" if truncation is None else truncation.get("direction", "Right").lower()
    )
    # truncation, only where the settings or the file have a limit
    limit = settings.cut if settings.cut is not None or truncation is None else settings.longest
    content["truncation"] = None
    if limit is not None:
        content["truncation"] = {"direction": side.capitalize(), "max_length": limit, "strategy": "LongestFirst"}
        content["truncation"] |= {"stride": 0}
    default = settings.facts.padding_side if padding is None else padding.get("direction", "Right").lower()
    direction, remarks = settings.side("padding_side", default).capitalize(), []
    if direction == "Left" and settings.left_padding_counts():
        direction, settings.corrected["padding_side"] = "Right", "right"
        source = settings.shown("padding_side") if settings.says("padding_side") else "the tokenizer pads on the left"
        remarks.append(
            f"{source}, and padding before a text changes what this model computes for it: the bundle pads on the "
            "right, so that a text in a batch has the outputs that it has alone; transformers pads on the left"
        )
    token = settings.token("pad_token")
    number = None if token is None else vocabulary(content).get(token)
    if padding is not None:
        padding |= {"strategy": "BatchLongest", "direction": direction, "pad_to_multiple_of": None}
        if number is not None:
            padding |= {"pad_id": number, "pad_token": token}
    elif number is not None:
        content["padding"] = {
            "strategy": "BatchLongest",
            "direction": direction,
            "pad_to_multiple_of": None,
            "pad_id": number,
            "pad_type_id": 3 if settings.name == "XLNetTokenizer" else 0,
            "pad_token": token,
        }
    return remarks


SWITCH = Switch(("padding_side", "truncation_side", "pad_token", "pad_token_type_id"), apply)
