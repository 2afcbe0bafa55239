"""Resolves generation options: from the call, else the bundle's files, else transformers' defaults."""

from typing import Any

from posexport.errors import PosexportError
from posexport.run.generate.config import SAMPLING_OPTIONS, GenerationConfig
from posexport.run.generate.file import Stated

_BEAM_OPTIONS = ("length_penalty", "early_stopping")
#: a call that sets one of two options overrides both of a file
_PAIRS = (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length"))
#: values without effect, which are left out of the options that a file decided
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "do_sample": (False,),
    "temperature": (1,),
    "top_p": (1,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "remove_invalid_values": (False,),
    "renormalize_logits": (False,),
    "return_timestamps": (False,),
    "is_multilingual": (True, False),
}


def resolve(call: GenerationConfig, stated: Stated) -> tuple[GenerationConfig, dict[str, Any]]:
    """Return the effective options, and the subset that comes from the bundle's files.

    Raises:
        PosexportError: options of the call contradict each other or the files.
    """
    _check_call(call)
    file = _set(stated.options)
    explicit = _set(call)
    samples = _samples(call, stated)
    if not samples:
        file = {name: value for name, value in file.items() if name not in SAMPLING_OPTIONS}
        explicit = {name: value for name, value in explicit.items() if name not in SAMPLING_OPTIONS}
    if stated.whisper is not None:
        # Whisper's generate samples only at a temperature of the call, and then without beams
        file.pop("temperature", None)
        if samples:
            file["num_beams"] = 1
    for pair in _PAIRS:
        if any(name in explicit for name in pair):
            file = {name: value for name, value in file.items() if name not in pair}
    if explicit.get("num_beams", file.get("num_beams", 1)) == 1:
        file = {name: value for name, value in file.items() if name not in _BEAM_OPTIONS}
    config = GenerationConfig(**{**file, **explicit, "do_sample": samples})
    _check_beams(config, call)
    said = {name: value for name, value in file.items() if name not in explicit and value not in _NEUTRAL.get(name, ())}
    if samples and call.do_sample is None and not call.sampling_options:
        said = {"do_sample": True, **said}
    else:
        said.pop("do_sample", None)
    return config, said


def _set(config: GenerationConfig) -> dict[str, Any]:
    """Options that differ from their defaults."""
    defaults = GenerationConfig()
    values = {name: getattr(config, name) for name in config.__struct_fields__}
    return {name: value for name, value in values.items() if value != getattr(defaults, name)}


def _samples(call: GenerationConfig, stated: Stated) -> bool:
    if call.do_sample is not None or call.sampling_options:
        return call.samples
    if stated.whisper is not None:
        return False
    return stated.options.do_sample is True and stated.options.temperature != 0


def _check_call(call: GenerationConfig) -> None:
    """Raise PosexportError if options of one call contradict each other."""
    for first, second in _PAIRS:
        if getattr(call, first) is not None and getattr(call, second) is not None:
            raise PosexportError(f"{first} and {second} say the same thing in two ways; give one of them")
    least, most = call.min_new_tokens, call.max_new_tokens
    if least is not None and most is not None and least > most:
        raise PosexportError(f"min_new_tokens={least} is more than max_new_tokens={most}; make it smaller")
    least, most = call.min_length, call.max_length
    if least is not None and most is not None and least > most:
        raise PosexportError(f"min_length={least} is more than max_length={most}; make it smaller")


def _check_beams(config: GenerationConfig, call: GenerationConfig) -> None:
    """Raise PosexportError for options of beam search without beams, and for too many sequences."""
    for name in _BEAM_OPTIONS if config.beams == 1 else ():
        value = getattr(call, name)
        if value is not None and value not in _NEUTRAL[name]:
            raise PosexportError(f"{name}={value} is about beam search, and num_beams is 1; give num_beams=2 or more")
    count = config.sequences
    if config.beams > 1 and count > config.beams:
        raise PosexportError(f"num_return_sequences={count} is more than num_beams={config.beams}; give as many beams")
    if config.beams == 1 and count > 1 and not config.samples:
        raise PosexportError(
            f"num_return_sequences={count} would be the same text {count} times without sampling or beams; give "
            "do_sample=True or num_beams"
        )
