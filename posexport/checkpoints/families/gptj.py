"""GPT-J: the first channels of every head are rotated in pairs, attention and feed-forward read one normalisation.

Wang and Komatsuzaki, "GPT-J-6B" (2021, released code). The head has a bias. transformers ends at a table of
``n_positions`` rotations; here any length is accepted.
"""

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.mapping import Plan
from posexport.encodings.rope.rope import Rope
from posexport.models.decoder import DecoderConfig

_ONCE = {"token": "transformer.wte", "final_norm": "transformer.ln_f"}
_LAYER = {
    "attention.query": "attn.q_proj",
    "attention.key": "attn.k_proj",
    "attention.value": "attn.v_proj",
    "attention.output": "attn.out_proj",
    "attention_residual.norm": "ln_1",
    "feedforward.inner": "mlp.fc_in",
    "feedforward.outer": "mlp.fc_out",
}
_NAMES = decoder.Names(once=_ONCE, layer=_LAYER, stem="transformer.h.{i}", unread=("attn.bias", "attn.masked_bias"))


def _build(config: Config, task: str) -> Plan:
    hidden = config.size("hidden_size")
    settings = decoder.settings(
        config,
        tied=False,
        feedforward=config.size_or("n_inner", 4 * hidden),
        activation=config.activation("activation_function", "gelu_new"),
        attention_bias=False,
        parallel_norms=1,
        eps=config.number("layer_norm_epsilon", 1e-5),
        head_bias=True,
    )
    with config.named_in_errors():
        return decoder.plan(task, settings, _encoding(config, settings), _NAMES)


def _encoding(config: Config, settings: DecoderConfig) -> Rope:
    """``rotary_dim`` null is the whole head; a file without the key means 64."""
    whole = "rotary_dim" in config.values and config.values["rotary_dim"] is None
    size = settings.head_size
    rotated = size if whole else config.size("rotary_dim", 64, least=2)
    return Rope(head_size=size, rotary_dim=rotated, layout="interleaved")


GPTJ = decoder.family(
    "gptj",
    _build,
    prefix="transformer",
    roots=("wte.", "h.", "ln_f."),
    spellings={
        "hidden_size": ("n_embd", "hidden_size"),
        "num_attention_heads": ("n_head", "num_attention_heads"),
        "num_hidden_layers": ("n_layer", "num_hidden_layers"),
    },
)
