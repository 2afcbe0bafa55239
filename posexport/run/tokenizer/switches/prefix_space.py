"""``add_prefix_space``: whether a text is tokenized with a space before it.

The pre-tokenizers ByteLevel (GPT-2, RoBERTa) and Metaspace (``▁`` for spaces: Llama, T5) have a field for it; older
Llama files have a normalizer that prepends ``▁``. ``trim_offsets`` changes the offsets of the same classes.
"""

from typing import Any

from posexport.run.tokenizer.settings import Settings
from posexport.run.tokenizer.switches.case import set_steps, steps_of
from posexport.run.tokenizer.switches.switch import Content, Switch

KEY = "add_prefix_space"
MARK = "▁"


def apply(content: Content, settings: Settings) -> list[str]:
    facts = settings.facts
    prefix = settings.flag(KEY, bool(facts.prefix_space)) if settings.says(KEY) else facts.prefix_space
    pre_tokenizer = content.get("pre_tokenizer")
    if prefix is None:
        return []
    remarks = []
    if pre_tokenizer is not None and pre_tokenizer.get("type") == "ByteLevel":
        pre_tokenizer[KEY] = prefix
    else:
        for step in _steps(pre_tokenizer):
            if step.get("type") == "ByteLevel" and step.get(KEY) != prefix and settings.says(KEY):
                if facts.nested_prefix_space:
                    step[KEY] = prefix
                else:
                    remarks.append(f"{settings.shown(KEY)}, which transformers does not follow in this tokenizer.json")
    if settings.says(KEY):
        remarks += _metaspace(content, settings, prefix=prefix)
    processor = content.get("post_processor")
    if processor is not None and processor.get("type") == "RobertaProcessing":
        processor[KEY] = prefix
        processor["trim_offsets"] = settings.flag("trim_offsets", True)
    return remarks


def _metaspace(content: Content, settings: Settings, *, prefix: bool) -> list[str]:
    before = [_prepends(content)]
    for step in _steps(content.get("pre_tokenizer")):
        if step.get("type") == "Metaspace":
            first = settings.values.get("legacy") is False and settings.facts.template
            if before == [True] and prefix:
                continue  # "first" and "always" are the choice of the file
            step.pop(KEY, None)
            step["prepend_scheme"] = ("first" if first else "always") if prefix else "never"
    steps = steps_of(content.get("normalizer"))
    prepends = [step for step in steps if step.get("type") == "Prepend"]
    if prepends and not prefix:
        set_steps(content, [step for step in steps if step not in prepends])
    elif prefix and not _prepends(content) and any(_marks(step) for step in steps) and settings.facts.template:
        set_steps(content, [{"type": "Prepend", "prepend": MARK}, *steps])
    if before == [_prepends(content)]:
        return []
    _mend_decoder(content, prefix=prefix)
    return [f"{settings.shown(KEY)}, and tokenizer.json the opposite: tokenizer_config.json is followed"]


def _prepends(content: Content) -> bool:
    """Whether the tokenizer adds ``▁`` before a text."""
    marked = [step for step in _steps(content.get("pre_tokenizer")) if step.get("type") == "Metaspace"]
    # before tokenizers 0.16 add_prefix_space was the field
    schemes = [step.get("prepend_scheme", "always" if step.get(KEY, True) else "never") for step in marked]
    prepended = any(step.get("type") == "Prepend" for step in steps_of(content.get("normalizer")))
    return prepended or any(scheme in ("first", "always") for scheme in schemes)


def _marks(step: dict[str, Any]) -> bool:
    return step.get("type") == "Replace" and step.get("content") == MARK


def _mend_decoder(content: Content, *, prefix: bool) -> None:
    """Set the decoder to remove the added space, or not to."""
    decoder = content.get("decoder")
    if decoder is None:
        return
    if decoder.get("type") == "Metaspace":
        decoder["prepend_scheme"] = "always" if prefix else "never"
    elif decoder.get("type") == "Sequence":
        strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        steps = [step for step in decoder["decoders"] if step.get("type") != "Strip"]
        decoder["decoders"] = [*steps, strip] if prefix else steps


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None:
        return []
    return list(pre_tokenizer["pretokenizers"]) if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]


SWITCH = Switch((KEY, "trim_offsets", "legacy"), apply)
