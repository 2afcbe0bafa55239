"""``encoder-<encoding>``: an encoder of the BERT family."""

from posexport.encodings.encoding import Encoding, Entry
from posexport.models.encoder import Encoder, EncoderConfig, EncoderModel
from posexport.nn.heads import FillMask, Head, plain_head
from posexport.nn.pooling import SentenceEmbedding
from posexport.sources.definitions.kind import Kind

TASKS = {
    "features": "the hidden states",
    "sentence-embedding": "one vector a text",
    "fill-mask": "logits over the vocabulary at every token",
    "sequence-classification": "logits over labels for a text",
    "token-classification": "logits over labels at every token",
    "question-answering": "start and end scores at every token",
}


def _head(task: str, config: EncoderConfig, labels: int) -> Head:
    if task == "sentence-embedding":
        return SentenceEmbedding(config.hidden, ["mean"], [None])
    if task == "fill-mask":
        layer, inner = config.layer, config.embedding.width or config.hidden
        return FillMask(config.hidden, inner, config.vocab, layer.feedforward.activation, layer.norm.eps)
    return plain_head(task, config.hidden, labels)


def _make(config: EncoderConfig, encoding: Encoding, task: str, labels: int) -> EncoderModel:
    return EncoderModel(Encoder(config, encoding), _head(task, config, labels))


def _takes(entry: Entry) -> bool:
    return entry.cls.axes == 1 and not entry.cls.causal


def _sizes(config: EncoderConfig) -> dict[str, int]:
    return {"hidden": config.embedding.width or config.hidden, "heads": config.heads, "head_size": config.head_size}


ENCODER = Kind(
    name="encoder",
    what="an encoder of the BERT family",
    config=EncoderConfig,
    # small, and pairwise different, so that no axis can be confused with another
    defaults={"vocab": 1000, "hidden": 60, "heads": 5, "feedforward": 224, "layers": 2, "types": 2},
    tasks=TASKS,
    takes=_takes,
    sizes=_sizes,
    make=_make,
)
