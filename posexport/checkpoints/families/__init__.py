"""The families of checkpoints that are read, by ``model_type``."""

from posexport.checkpoints.families.albert import ALBERT
from posexport.checkpoints.families.bart import BART
from posexport.checkpoints.families.beit import BEIT
from posexport.checkpoints.families.bert import BERT, ERNIE, MEGATRON_BERT
from posexport.checkpoints.families.bloom import BLOOM
from posexport.checkpoints.families.canine import CANINE
from posexport.checkpoints.families.deberta import DEBERTA, DEBERTA_V2
from posexport.checkpoints.families.distilbert import DISTILBERT
from posexport.checkpoints.families.electra import ELECTRA
from posexport.checkpoints.families.esm import ESM
from posexport.checkpoints.families.falcon import FALCON
from posexport.checkpoints.families.family import Family
from posexport.checkpoints.families.gemma import GEMMA, GEMMA2, GEMMA3_TEXT
from posexport.checkpoints.families.gpt2 import GPT2, GPT_BIGCODE
from posexport.checkpoints.families.gpt_neo import GPT_NEO
from posexport.checkpoints.families.gpt_neox import GPT_NEOX
from posexport.checkpoints.families.gptj import GPTJ
from posexport.checkpoints.families.granite import GRANITE
from posexport.checkpoints.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from posexport.checkpoints.families.longformer import LONGFORMER
from posexport.checkpoints.families.marian import MARIAN
from posexport.checkpoints.families.mbart import MBART
from posexport.checkpoints.families.modernbert import MODERNBERT
from posexport.checkpoints.families.mpnet import MPNET
from posexport.checkpoints.families.mpt import MPT
from posexport.checkpoints.families.nezha import NEZHA
from posexport.checkpoints.families.olmo2 import OLMO2
from posexport.checkpoints.families.opt import OPT
from posexport.checkpoints.families.phi import PHI
from posexport.checkpoints.families.phi3 import PHI3
from posexport.checkpoints.families.roberta import CAMEMBERT, ROBERTA, ROBERTA_PRELAYERNORM, XLM_ROBERTA
from posexport.checkpoints.families.roformer import ROFORMER
from posexport.checkpoints.families.smollm3 import SMOLLM3
from posexport.checkpoints.families.stablelm import STABLELM
from posexport.checkpoints.families.starcoder2 import STARCODER2
from posexport.checkpoints.families.swin import SWIN
from posexport.checkpoints.families.swinv2 import SWINV2
from posexport.checkpoints.families.t5 import MT5, T5, UMT5
from posexport.checkpoints.families.vit import VIT
from posexport.checkpoints.families.wav2vec2_bert import WAV2VEC2_BERT
from posexport.checkpoints.families.wav2vec2_conformer import WAV2VEC2_CONFORMER
from posexport.checkpoints.families.wavlm import WAVLM
from posexport.checkpoints.families.whisper import WHISPER
from posexport.checkpoints.families.xglm import XGLM
from posexport.checkpoints.families.xlnet import XLNET

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        BERT,
        DISTILBERT,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        ELECTRA,
        ALBERT,
        MEGATRON_BERT,
        ERNIE,
        ROBERTA_PRELAYERNORM,
        ROFORMER,
        NEZHA,
        MPNET,
        DEBERTA,
        DEBERTA_V2,
        ESM,
        LONGFORMER,
        CANINE,
        MODERNBERT,
        T5,
        MT5,
        UMT5,
        BART,
        MBART,
        MARIAN,
        WHISPER,
        XLNET,
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        PHI3,
        SMOLLM3,
        GEMMA,
        GEMMA2,
        GEMMA3_TEXT,
        PHI,
        STABLELM,
        GRANITE,
        OLMO2,
        STARCODER2,
        VIT,
        BEIT,
        SWIN,
        SWINV2,
        WAV2VEC2_CONFORMER,
        WAV2VEC2_BERT,
        WAVLM,
        GPT2,
        GPT_BIGCODE,
        BLOOM,
        GPT_NEO,
        GPT_NEOX,
        GPTJ,
        OPT,
        FALCON,
        MPT,
        XGLM,
    )
}
