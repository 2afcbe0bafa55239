"""The families of checkpoints that are read, by ``model_type``."""

from posexport.sources.huggingface.families.albert import ALBERT
from posexport.sources.huggingface.families.base import Family
from posexport.sources.huggingface.families.bert import BERT, ERNIE, MEGATRON_BERT
from posexport.sources.huggingface.families.deberta import DEBERTA, DEBERTA_V2
from posexport.sources.huggingface.families.electra import ELECTRA
from posexport.sources.huggingface.families.esm import ESM
from posexport.sources.huggingface.families.mpnet import MPNET
from posexport.sources.huggingface.families.nezha import NEZHA
from posexport.sources.huggingface.families.roberta import CAMEMBERT, ROBERTA, ROBERTA_PRELAYERNORM, XLM_ROBERTA
from posexport.sources.huggingface.families.roformer import ROFORMER

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        BERT,
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
    )
}
