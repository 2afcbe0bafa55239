"""GPT-J: the first channels of every head are rotated in pairs, attention and feed-forward read one normalisation.

Wang and Komatsuzaki, "GPT-J-6B" (2021, released code). The head has a bias. transformers ends at a table of
``n_positions`` rotations; here any length is taken.
"""

from posexport.encodings.rope import Rope
from posexport.models.decoder import DecoderConfig
from posexport.sources.huggingface.config import MOST_LAYERS, Config
from posexport.sources.huggingface.families.causal import Given, Names, family, plan
from posexport.sources.huggingface.plan import Plan

_SPELLINGS = {
    "hidden_size": ("n_embd", "hidden_size"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "num_hidden_layers": ("n_layer", "num_hidden_layers"),
}
_ONCE = {"token": "transformer.wte", "final_norm": "transformer.ln_f"}
_STEM = "transformer.h.{i}"
_LAYER = {
    "attention.query": f"{_STEM}.attn.q_proj",
    "attention.key": f"{_STEM}.attn.k_proj",
    "attention.value": f"{_STEM}.attn.v_proj",
    "attention.output": f"{_STEM}.attn.out_proj",
    "attention_residual.norm": f"{_STEM}.ln_1",
    "feedforward.inner": f"{_STEM}.mlp.fc_in",
    "feedforward.outer": f"{_STEM}.mlp.fc_out",
}
_MASKS = tuple(f"{_STEM}.attn.{name}" for name in ("bias", "masked_bias"))


def _plan(config: Config, task: str) -> Plan:
    given = Given(config, _SPELLINGS)
    hidden, vocab = given.size("hidden_size"), config.size("vocab_size")
    settings = DecoderConfig.of(
        vocab=vocab,
        hidden=hidden,
        heads=given.heads(hidden),
        layers=given.size("num_hidden_layers", most=MOST_LAYERS),
        feedforward=given.size("n_inner", 4 * hidden),
        activation=config.activation("activation_function", "gelu_new"),
        attention_bias=False,
        parallel_norms=1,
        eps=config.number("layer_norm_epsilon", 1e-5),
        padding_id=given.padding(vocab),
        tied=config.flag("tie_word_embeddings", False),
        head_bias=True,
    )
    names = Names(once=_ONCE, layer=_LAYER, masks=_MASKS)
    return plan(config, task, settings, lambda: _encoding(config, settings), names)


def _encoding(config: Config, settings: DecoderConfig) -> Rope:
    """``rotary_dim`` null is the whole head; a file without the key means 64."""
    whole = "rotary_dim" in config.values and config.values["rotary_dim"] is None
    size = settings.head_size
    rotated = size if whole else config.size("rotary_dim", 64, least=2)
    return Rope(head_size=size, rotary_dim=rotated, layout="interleaved")


GPTJ = family("gptj", _plan, prefix="transformer", roots=("wte.", "h.", "ln_f."))
