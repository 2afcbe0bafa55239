"""The families of checkpoints that are read, by ``model_type``."""

from posexport.sources.huggingface.families.albert import ALBERT
from posexport.sources.huggingface.families.bart import BART
from posexport.sources.huggingface.families.beit import BEIT
from posexport.sources.huggingface.families.bert import BERT, ERNIE, MEGATRON_BERT
from posexport.sources.huggingface.families.bloom import BLOOM
from posexport.sources.huggingface.families.canine import CANINE
from posexport.sources.huggingface.families.deberta import DEBERTA, DEBERTA_V2
from posexport.sources.huggingface.families.distilbert import DISTILBERT
from posexport.sources.huggingface.families.electra import ELECTRA
from posexport.sources.huggingface.families.esm import ESM
from posexport.sources.huggingface.families.falcon import FALCON
from posexport.sources.huggingface.families.family import Family
from posexport.sources.huggingface.families.gemma import GEMMA, GEMMA2, GEMMA3_TEXT
from posexport.sources.huggingface.families.gpt2 import GPT2, GPT_BIGCODE
from posexport.sources.huggingface.families.gpt_neo import GPT_NEO
from posexport.sources.huggingface.families.gpt_neox import GPT_NEOX
from posexport.sources.huggingface.families.gptj import GPTJ
from posexport.sources.huggingface.families.granite import GRANITE
from posexport.sources.huggingface.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from posexport.sources.huggingface.families.longformer import LONGFORMER
from posexport.sources.huggingface.families.marian import MARIAN
from posexport.sources.huggingface.families.mbart import MBART
from posexport.sources.huggingface.families.modernbert import MODERNBERT
from posexport.sources.huggingface.families.mpnet import MPNET
from posexport.sources.huggingface.families.mpt import MPT
from posexport.sources.huggingface.families.nezha import NEZHA
from posexport.sources.huggingface.families.olmo2 import OLMO2
from posexport.sources.huggingface.families.opt import OPT
from posexport.sources.huggingface.families.phi import PHI
from posexport.sources.huggingface.families.phi3 import PHI3
from posexport.sources.huggingface.families.roberta import CAMEMBERT, ROBERTA, ROBERTA_PRELAYERNORM, XLM_ROBERTA
from posexport.sources.huggingface.families.roformer import ROFORMER
from posexport.sources.huggingface.families.smollm3 import SMOLLM3
from posexport.sources.huggingface.families.stablelm import STABLELM
from posexport.sources.huggingface.families.starcoder2 import STARCODER2
from posexport.sources.huggingface.families.swin import SWIN
from posexport.sources.huggingface.families.swinv2 import SWINV2
from posexport.sources.huggingface.families.t5 import MT5, T5, UMT5
from posexport.sources.huggingface.families.vit import VIT
from posexport.sources.huggingface.families.wav2vec2_bert import WAV2VEC2_BERT
from posexport.sources.huggingface.families.wav2vec2_conformer import WAV2VEC2_CONFORMER
from posexport.sources.huggingface.families.wavlm import WAVLM
from posexport.sources.huggingface.families.whisper import WHISPER
from posexport.sources.huggingface.families.xglm import XGLM
from posexport.sources.huggingface.families.xlnet import XLNET

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
