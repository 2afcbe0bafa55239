"""BERT as a decoder (``is_decoder``): causal attention with a KV cache, and the fill-mask head for the next token.

Rothe et al., "Leveraging Pre-trained Checkpoints for Sequence Generation Tasks" (arXiv:1907.12461), section 2. Every
token has type 0; its embedding is added to the table of positions here.
"""

import torch

from posexport.checkpoints.config import Config
from posexport.checkpoints.families import decoder
from posexport.checkpoints.families.encoder import FillMaskNames, decoder_bias
from posexport.checkpoints.mapping import AddRow, NameMap, Origin, Plan, in_layers, origin, origins_of
from posexport.encodings.absolute import Absolute
from posexport.errors import PosexportError
from posexport.models.decoder import Decoder, DecoderModel, PredictionHead
from posexport.models.definition import Definition

GENERATION = "text-generation"


def is_decoder(config: Config, task: str) -> bool:
    """Whether config.json makes it one; PosexportError for a task that does not go with that."""
    causal = config.flag("is_decoder", False)
    if causal and task not in (GENERATION, "features"):
        raise PosexportError(
            f"{config.label} sets is_decoder, so that tokens attend to earlier ones only; with that {task} is not "
            f"read, choose --task {GENERATION} or features"
        )
    if task == GENERATION and not causal:
        raise PosexportError(
            f"{config.label} says is_decoder = false: its tokens attend to later ones, so that it cannot write text; "
            "set is_decoder to true if it was trained as a decoder, else choose --task fill-mask"
        )
    return causal


def plan(config: Config, task: str, prefix: str, names: NameMap, head: FillMaskNames) -> Plan:
    """``names``: the modules of a layer below ``prefix``; ``head``: the modules of the fill-mask head."""
    config.only("a decoder's positions are a table of absolute ones here", position_embedding_type="absolute")
    settings = decoder.settings(
        config,
        tied=True,
        feedforward=config.size("intermediate_size"),
        activation=config.activation("hidden_act", "gelu"),
        norm="post",
        embedding_norm=True,
        final_norm=False,
        head_bias=True,
        eps=config.number("layer_norm_eps", 1e-12),
    )
    with torch.device("meta"):
        encoding = Absolute(max_positions=config.size("max_position_embeddings"), hidden=settings.hidden)
        stack = Decoder(settings, encoding)
        scored = PredictionHead(settings, stack.token) if task == GENERATION else None
        model: Definition = DecoderModel(stack, scored)
    # where the weights are: token types are added to positions, as every token has type 0
    assert head.decoder is not None
    token = f"{prefix}.embeddings.word_embeddings"
    types = AddRow(f"{prefix}.embeddings.token_type_embeddings.weight", config.size("type_vocab_size", 2))
    modules = {
        "decoder.token": origin(token),
        "decoder.encoding": Origin((f"{prefix}.embeddings.position_embeddings",), (types,)),
        "decoder.embedding_norm": origin(f"{prefix}.embeddings.LayerNorm"),
        "head.dense": origin(head.dense),
        "head.norm": origin(head.norm),
        "head.out": origin(head.decoder),
    } | in_layers(settings.layers, "decoder.layers", f"{prefix}.", names)
    tied = settings.head.tied
    bias, unread = decoder_bias(config, head.bias, head.decoder, tied=tied)
    parameters = {"head.out.bias": Origin(bias)}
    if scored is not None and tied:
        parameters["decoder.token.weight"] = Origin((token, head.decoder)).below("weight")
    return Plan(model, origins_of(model, modules, parameters), unread=unread, decides=("add_cross_attention",))
