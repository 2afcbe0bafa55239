"""Prompts with pictures: bundles of models of images and text generate what transformers' models and processors do."""

import json
import string
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import posexport
from posexport.base.spec import BATCH, SEQUENCE, InputSpec, PictureRules
from posexport.errors import PosexportError
from posexport.run.pictures_in_prompts import Pictures, Row, _continued, mrope
from posexport.run.session import Session
from posexport.sources import prepare
from posexport.through import anyres as through_anyres
from posexport.through.towers import Tower
from tests.command import posexport as command
from tests.through.test_three_graphs import Blocks, Square, toy

transformers: Any = pytest.importorskip("transformers", reason="pip install 'posexport[transformers]'")

WORDS = {"hidden_size": 20, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 5}
WORDS |= {"num_key_value_heads": 1, "max_position_embeddings": 400, "pad_token_id": 0, "bos_token_id": 1}
WORDS |= {"eos_token_id": 2}
IMAGES = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
#: heights and widths of pictures
SIZES = ((20, 30), (33, 17), (12, 12), (25, 60))
#: tokens of an answer
NEW = 9
CHAT = (
    "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}PICTURE{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def drawn(model: Any) -> Any:
    """Weights large enough that the order of tokens matters, and the pictures."""
    random = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=random) * (3 if "patch_embed" in name else 0.3)
            parameter.copy_(1 + noise if parameter.dim() == 1 else noise)
    return model.eval()


def with_start(tokenizer: Any, token: str) -> Any:
    """The tokenizer, whose texts begin with ``token``."""
    from tokenizers.processors import TemplateProcessing

    special = [(token, tokenizer.convert_tokens_to_ids(token))]
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{token} $A", special_tokens=special)
    return tokenizer


def llamas(*special: str) -> Any:
    """A tokenizer of letters, with further special tokens."""
    tokens = ["<pad>", "<s>", "</s>", "<unk>", *string.ascii_letters, *string.digits, *"?:,.<>▁\n"]
    tokenizer = transformers.LlamaTokenizer(vocab={token: at for at, token in enumerate(tokens)}, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": list(special), "pad_token": "<pad>"})
    return with_start(tokenizer, "<s>")


def llava() -> tuple[Any, Any]:
    """A model and its processor."""
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil

    tokenizer = llamas("<image>")
    processor = transformers.LlavaProcessor(
        image_processor=LlavaImageProcessorPil(size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}),
        tokenizer=tokenizer,
        patch_size=4,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT.replace("PICTURE", "<image>"),
    )
    clip = {**IMAGES, "model_type": "clip_vision_model", "image_size": 12, "patch_size": 4}
    config = transformers.LlavaConfig(
        image_token_index=processor.image_token_id,
        text_config={**WORDS, "model_type": "llama", "vocab_size": len(tokenizer)},
        vision_config=clip,
        image_seq_length=9,
    )
    return drawn(transformers.LlavaForConditionalGeneration(config)), processor


class SmolVLMsPictures(transformers.SmolVLMProcessor):  # type: ignore[misc]
    """Without videos, for which transformers needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        self.fake_image_token, self.image_token = "<fake_token_around_image>", "<image>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)
        self.global_image_token, self.image_seq_len = "<global-img>", 4
        self.video_token = "<video>"
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)
        self.video_processor = SimpleNamespace(num_frames=None, fps=None)

    def save_pretrained(self, folder: Any) -> None:
        save_parts(self, folder)


def tiled(kind: str) -> tuple[Any, Any]:
    """A model of Idefics3's types, and its processor: tiles of 12 pixels, 4 features each."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer = llamas("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *places)
    edges = {"size": {"longest_edge": 30}, "max_image_size": {"longest_edge": 12}}
    template = CHAT.replace("PICTURE", "<image>")
    processor: Any
    if kind == "idefics3":
        images = Idefics3ImageProcessorPil(**edges)
        processor = transformers.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=template)
        config_of, model_of = transformers.Idefics3Config, transformers.Idefics3ForConditionalGeneration
    else:
        processor = SmolVLMsPictures(SmolVLMImageProcessorPil(**edges), tokenizer, template)
        config_of, model_of = transformers.SmolVLMConfig, transformers.SmolVLMForConditionalGeneration
    config = config_of(
        image_token_id=processor.image_token_id,
        pad_token_id=0,
        scale_factor=2,
        text_config={**WORDS, "model_type": "llama", "vocab_size": len(tokenizer)},
        vision_config={**IMAGES, "image_size": 12, "patch_size": 3},
    )
    return drawn(model_of(config)), processor


def anyres(kind: str) -> tuple[Any, Any]:
    """A model of LLaVA-NeXT or LLaVA-OneVision, and its processor: tiles of 12 pixels, 9 features each."""
    from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

    tokenizer, sizes = llamas("<image>", "<video>"), [[24, 12], [24, 24], [12, 36], [24, 48], [36, 24]]
    template, vision = CHAT.replace("PICTURE", "<image>"), {**IMAGES, "image_size": 12, "patch_size": 4}
    words = {**WORDS, "model_type": "llama", "vocab_size": len(tokenizer)}
    if kind == "llava_next":
        edges = {"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}}
        processor: Any = transformers.LlavaNextProcessor(
            LlavaNextImageProcessorPil(image_grid_pinpoints=sizes, **edges),
            tokenizer,
            patch_size=4,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template,
        )
        config_of, model_of = transformers.LlavaNextConfig, transformers.LlavaNextForConditionalGeneration
        more: Any = {"vision_config": {**vision, "model_type": "clip_vision_model"}}
    else:
        images = LlavaOnevisionImageProcessorPil(image_grid_pinpoints=sizes, size={"height": 12, "width": 12})
        processor = OnevisionsPictures(images, tokenizer, template)
        config_of, model_of = transformers.LlavaOnevisionConfig, transformers.LlavaOnevisionForConditionalGeneration
        vision |= {"model_type": "siglip_vision_model", "vision_use_head": False}
        more = {"vision_config": vision, "vision_aspect_ratio": "anyres_max_4", "video_token_id": len(tokenizer) - 1}
    config = config_of(
        image_token_index=processor.image_token_id, image_grid_pinpoints=sizes, text_config=words, **more
    )
    return drawn(model_of(config)), processor


class OnevisionsPictures(transformers.LlavaOnevisionProcessor):  # type: ignore[misc]
    """Without videos, for which transformers needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        self.num_image_tokens, self.vision_feature_select_strategy = 9, "full"
        self.image_token, self.video_token, self.vision_aspect_ratio = "<image>", "<video>", "anyres_max_4"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids(["<image>", "<video>"])
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    def save_pretrained(self, folder: Any) -> None:
        save_parts(self, folder)


def gemma3() -> tuple[Any, Any]:
    """A model and its processor. Its window is shorter than a picture."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *string.ascii_letters, *string.digits, *"?:,.<>▁\n", "\n\n"]
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = transformers.GemmaTokenizer(
        vocab={token: at for at, token in enumerate(tokens)}, merges=[("\n", "\n")], extra_special_tokens=names
    )
    processor = transformers.Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": 16, "width": 16}),
        tokenizer=with_start(tokenizer, "<bos>"),
        image_seq_length=4,
        chat_template="{{ bos_token }}" + CHAT.replace("PICTURE", "<start_of_image>"),
    )
    siglip = {**IMAGES, "model_type": "siglip_vision_model", "image_size": 16, "patch_size": 4}
    layers = ["sliding_attention", "full_attention"]
    words = {**WORDS, "head_dim": 8, "vocab_size": len(tokenizer), "sliding_window": 3, "layer_types": layers}
    words["query_pre_attn_scalar"] = 1
    config = transformers.Gemma3Config(
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
        mm_tokens_per_image=4,
        text_config={**words, "bos_token_id": 2, "eos_token_id": 1},
        vision_config={**siglip, "vision_use_head": False},
        tie_word_embeddings=False,
    )
    return drawn(transformers.Gemma3ForConditionalGeneration(config)), processor


def save_parts(processor: Any, folder: Any) -> None:
    """The files of a processor whose class cannot be saved as a whole."""
    processor.tokenizer.chat_template = processor.chat_template
    for part in (processor.tokenizer, processor.image_processor):
        part.save_pretrained(folder)


class QwensPictures(transformers.Qwen2VLProcessor):  # type: ignore[misc]
    """Without videos, for which transformers needs torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        transformers.ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    def save_pretrained(self, folder: Any) -> None:
        save_parts(self, folder)


def qwen(kind: str) -> tuple[Any, Any]:
    """A model of one of Qwen's types, and a processor."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokens = ["<|endoftext|>", *sorted(ByteLevel.alphabet())]
    tokenizer = transformers.Qwen2Tokenizer(vocab={token: at for at, token in enumerate(tokens)}, merges=[])
    names = ("im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in names]})
    size = {"shortest_edge": 64, "longest_edge": 1200}
    template = CHAT.replace("PICTURE", "<|vision_start|><|image_pad|><|vision_end|>")
    images = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, temporal_patch_size=2, size=size)
    words: dict[str, Any] = {
        **WORDS,
        "hidden_size": 40,
        "vocab_size": len(tokenizer),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    tower: dict[str, Any] = {"depth": 2, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "hidden_size": 32}
    tower |= {"temporal_patch_size": 2, "out_hidden_size": 40, "intermediate_size": 24}
    if kind == "qwen2_vl":
        tower |= {"embed_dim": 32, "hidden_size": 40, "mlp_ratio": 1}
        config_of, model_of = transformers.Qwen2VLConfig, transformers.Qwen2VLForConditionalGeneration
    elif kind == "qwen2_5_vl":
        tower |= {"window_size": 16, "fullatt_block_indexes": [1]}
        config_of, model_of = transformers.Qwen2_5_VLConfig, transformers.Qwen2_5_VLForConditionalGeneration
    elif kind == "qwen3_vl":
        tower |= {"num_position_embeddings": 25, "deepstack_visual_indexes": [0, 1]}
        words, rope = {**words, "head_dim": 8}, {**rope, "mrope_interleaved": True}
        config_of, model_of = transformers.Qwen3VLConfig, transformers.Qwen3VLForConditionalGeneration
    else:
        tower |= {"num_position_embeddings": 25}
        rope |= {"mrope_interleaved": True, "partial_rotary_factor": 1.0}
        words |= {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 20}
        words |= {"linear_value_head_dim": 10, "layer_types": ["linear_attention", "full_attention"]}
        config_of, model_of = transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration
    ids = {f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in names[2:4]}
    ids |= {
        name: tokenizer.convert_tokens_to_ids(f"<|{name[:5]}_pad|>") for name in ("image_token_id", "video_token_id")
    }
    words["rope_parameters"] = rope
    return drawn(model_of(config_of(**ids, text_config=words, vision_config=tower))), QwensPictures(
        images, tokenizer, template
    )


_QWEN = "<|vision_start|><|image_pad|><|vision_end|>"
#: by type what makes a model and its processor, and a picture in a prompt
KINDS = {
    "llava": (llava, "<image>"),
    "gemma3": (gemma3, "<start_of_image>"),
    "idefics3": (lambda: tiled("idefics3"), "<image>"),
    "smolvlm": (lambda: tiled("smolvlm"), "<image>"),
    "llava_next": (lambda: anyres("llava_next"), "<image>"),
    "llava_onevision": (lambda: anyres("llava_onevision"), "<image>"),
    "qwen2_vl": (lambda: qwen("qwen2_vl"), _QWEN),
    "qwen2_5_vl": (lambda: qwen("qwen2_5_vl"), _QWEN),
    "qwen3_vl": (lambda: qwen("qwen3_vl"), _QWEN),
    "qwen3_5": (lambda: qwen("qwen3_5"), _QWEN),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """From a type and a KV cache to the session of its bundle, transformers' model and its processor."""
    at = tmp_path_factory.mktemp("pictures")

    @cache
    def load(kind: str, kv: Any = "dynamic") -> Any:
        model, processor = KINDS[kind][0]()
        folder, bundle = at / kind, at / f"{kind}-{kv}"
        if not folder.exists():
            model.save_pretrained(folder)
            processor.save_pretrained(folder)
        processor.tokenizer.padding_side = "left"
        posexport.convert(str(folder), bundle, cache=kv, target="cpu", verify=False)
        return posexport.load(bundle), model, processor

    yield load
    load.cache_clear()


def pictures() -> list[NDArray[np.uint8]]:
    """Four colours in the corners of each, which averages of noise would not tell apart."""
    random = np.random.default_rng(0)
    return [
        np.kron(random.integers(0, 255, (2, 2, 3)), np.ones((*size, 1), int))[::2, ::2].astype(np.uint8)
        for size in SIZES
    ]


def asked(kind: str) -> tuple[list[str], list[list[Any]]]:
    """Prompts of different lengths with one picture, two, none and one, and their pictures."""
    one, two, three, four = pictures()
    here = KINDS[kind][1]
    texts = [f"a {here} what?", f"x{here} and {here}yes or\nno: ", "Who, where?", f"{here}b"]
    return texts, [[one], [two, three], [], [four]]


def wanted(model: Any, arrays: Any, **options: Any) -> list[list[int]]:
    """transformers' tokens after a batch."""
    done = model.generate(**arrays, max_new_tokens=NEW, **{"do_sample": False, "eos_token_id": None, **options})
    tokens: list[list[int]] = done[:, arrays["input_ids"].shape[1] :].tolist()
    return tokens


def tokens(session: posexport.Session, texts: Any, images: Any, **options: Any) -> list[list[int]]:
    done = session.generate(texts, images=images, max_new_tokens=NEW, eos_token_id=[], **options)
    return [completion.tokens for completion in done.completions]


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
def test_texts_with_pictures_are_continued_as_by_transformers(opened: Any, kind: str) -> None:
    session, model, processor = opened(kind)
    texts, images = asked(kind)
    expected = wanted(model, processor(images=images, text=texts, padding=True, return_tensors="pt"))
    assert tokens(session, texts, images) == expected
    for chunk in (1, 5, 14):
        assert tokens(session, texts, images, prefill_chunk_size=chunk) == expected
    alone = [tokens(session, [text], [row])[0] for text, row in zip(texts, images, strict=True)]
    assert alone == expected
    # of other pictures, and in another order, the answers are others
    assert tokens(session, texts[:1], [images[3]]) != expected[:1]
    assert tokens(session, texts[1:2], [images[1][::-1]]) != expected[1:2]
    # as ids, with a token for each feature
    prompts = [completion.prompt_tokens for completion in session.generate(texts, images=images).completions]
    assert tokens(session, prompts, images) == expected
    text = session.generate(texts[:1], images=images[:1], max_new_tokens=NEW).completions[0].text
    assert "".join(session.stream(texts[0], images=images[0], max_new_tokens=NEW)) == text


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
def test_beams_and_samples_of_prompts_with_pictures(opened: Any, kind: str) -> None:
    session, model, processor = opened(kind)
    texts, images = asked(kind)
    arrays = processor(images=images, text=texts, padding=True, return_tensors="pt")
    expected = wanted(model, arrays, num_beams=3)
    assert tokens(session, texts, images, num_beams=3) == expected
    options = {"do_sample": True, "seed": 3, "num_return_sequences": 2}
    drawn_of = tokens(session, [texts[0], texts[0]], [images[0], images[3]], **options)
    assert drawn_of == [
        *tokens(session, [texts[0]], [images[0]], **options),
        *tokens(session, [texts[0]], [images[3]], **options),
    ]
    assert len({tuple(row) for row in drawn_of}) > 1


@pytest.mark.all
@pytest.mark.parametrize("kind", ["qwen2_vl", "gemma3"])
def test_a_static_cache_reads_pictures(opened: Any, kind: str) -> None:
    session, model, processor = opened(kind, "static")
    texts, images = asked(kind)
    arrays = processor(images=images, text=texts, padding=True, return_tensors="pt")
    assert tokens(session, texts, images, prefill_chunk_size=6) == wanted(model, arrays)


def chats() -> list[list[dict[str, Any]]]:
    """With one picture, and with two and an answer between."""
    one, two, three, _ = (Image.fromarray(picture) for picture in pictures())
    question = {"type": "text", "text": "what?"}
    first = [{"role": "user", "content": [{"type": "image", "image": one}, question]}]
    second: list[dict[str, Any]] = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "see "}, {"type": "image", "image": two}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a cat"}]},
        {"role": "user", "content": [question, {"type": "image", "image": three}]},
    ]
    return [first, second]


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
def test_chats_with_pictures_are_answered_as_by_transformers(opened: Any, kind: str) -> None:
    session, model, processor = opened(kind)
    for chat in chats():
        arrays = processor.apply_chat_template(
            [chat], tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        expected = wanted(model, arrays)
        assert tokens(session, [chat], None) == expected
        # pictures beside the messages
        found = [
            part.pop("image")
            for turn in chat
            if turn["content"] != "be short"
            for part in turn["content"]
            if part["type"] == "image"
        ]
        assert tokens(session, [chat], [found]) == expected
    text = [{"role": "user", "content": "Who?"}]
    arrays = processor.apply_chat_template(
        [text], tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    assert tokens(session, [text], None) == wanted(model, arrays)


@pytest.mark.all
@pytest.mark.parametrize("kind", KINDS)
def test_the_pipeline_answers_as_transformers(opened: Any, kind: str) -> None:
    session, model, processor = opened(kind)
    texts, images = asked(kind)
    images = [[Image.fromarray(picture) for picture in row] for row in images]
    ours = posexport.pipeline(session, max_new_tokens=NEW)
    theirs = transformers.pipeline("image-text-to-text", model=model, processor=processor)
    assert ours.task == "image-text-to-text"
    both: Any = ((ours, {}), (theirs, {"generate_kwargs": {"max_new_tokens": NEW}}))
    one, two = chats()
    begun = [*one, {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    for arguments in (
        {"images": images[0][0], "text": texts[0]},
        # transformers' pipeline gives pictures of one text as if each were the only one, which OneVision cuts
        {"images": [images[1]] if kind == "llava_onevision" else images[1], "text": texts[1:2]},
        {"images": images[0], "text": texts[0], "return_full_text": False},
        {"images": [images[0], images[1]], "text": texts[:2]},
        {"text": texts[2]},
        {"text": one},
        {"text": one, "return_full_text": False},
        {"text": [one, two]},
        {"text": begun},
        {"images": two},
    ):
        answers = [pipe(**arguments, **options) for pipe, options in both]
        assert answers[0] == answers[1], arguments
    with pytest.raises(PosexportError, match="give text"):
        ours(images[0])


@pytest.mark.all
def test_the_commands_answer_about_files(opened: Any, tmp_path: Path) -> None:
    session, *_ = opened("llava")
    file = tmp_path / "cat.png"
    Image.fromarray(pictures()[0]).save(file)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]
    expected = session.generate([chat], images=[[file]], max_new_tokens=NEW).completions[0].text
    bundle = str(session.directory)
    run = ["run", bundle, "--image", str(file), "--option", f"max_new_tokens={NEW}", "--json"]
    (answer,) = json.loads(command(*run, "--text", "what?").stdout)["answers"]
    assert answer[0]["generated_text"][-1]["content"].strip() == expected.strip()
    (answer,) = json.loads(command(*run, "--text", "<image> what?").stdout)["answers"]
    assert answer[0]["input_text"] == "<image> what?"
    said = ["generate", bundle, "--image", str(file), "--max-new-tokens", str(NEW), "--chat", "--prompt", "what?"]
    assert command(*said).stdout.strip() == expected.strip()


@pytest.mark.all
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda s: s.generate(["a <image>"]), "prompt 0 has <image> 1 times and 0 pictures"),
        (lambda s: s.generate(["a"], images=[pictures()[:1]]), "prompt 0 has <image> 0 times and 1 pictures"),
        (lambda s: s.generate(["<image>", "<image>"], images=[pictures()[:2]]), "the pictures of each of 2 prompts"),
        (lambda s: s.generate([[5, 74, 74]], images=[pictures()[:1]]), "has 2 tokens 74 for the features of pictures"),
        (lambda s: s.generate(chats()[:1], images=[pictures()[:1]]), "in the messages and in images"),
        (
            lambda s: posexport.pipeline(s)({"images": pictures()[:1], "text": "what?"}),
            "has <image> 0 times and 1 pictures",
        ),
    ],
)
def test_pictures_that_no_prompt_names_are_refused(opened: Any, call: Any, said: str) -> None:
    with pytest.raises(PosexportError, match=said):
        call(opened("llava")[0])


def test_positions_of_pictures_are_transformers() -> None:
    """Of rows with padding before them, with one picture, two of which the first begins the row, and none."""
    model, _ = qwen("qwen2_vl")
    grids = [[(1, 4, 6)], [(1, 8, 2), (1, 2, 2)], []]
    rows = [[0, 0, *[1] * 6, 0], [*[1] * 4, 0, 1, 0, 0], [0, 0, 0]]
    types = torch.tensor([[0] * (9 - len(row)) + row for row in rows]).int()
    mask = torch.tensor([[0] * (9 - len(row)) + [1] * len(row) for row in rows])
    flat = torch.tensor([grid for row in grids for grid in row])
    expected, deltas = model.model.get_rope_index(types.long(), types, flat, attention_mask=mask)
    for number, row in enumerate(rows):
        sizes = np.array(grids[number]).reshape(-1, 3) // [1, 2, 2]
        positions = mrope(np.array(row) == 1, sizes)
        assert positions.tolist() == expected[:, number, 9 - len(row) :].tolist()
        after = _continued(positions, np.array([-1, 0, len(row), len(row) + 3]))
        assert after[:, 0].tolist() == [-1] * 3
        assert (after[:, 2:] == [[len(row) + int(deltas[number]), len(row) + int(deltas[number]) + 3]] * 3).all()


def test_features_take_the_places_of_a_row_s_tokens() -> None:
    """By the number of a token without padding: in any chunk, in rows that were moved, and not after the prompt."""
    features = np.arange(1.0, 7.0).reshape(3, 2)
    rows = [Row(features, np.array([-1, 0, 1, -1, 2]), None), Row(np.zeros((0, 1)), np.array([-1]), None)]
    marks = InputSpec(name="marks", dtype="int64", axes=[BATCH, SEQUENCE], role="blocks")
    arrays = {"x": np.zeros((2, 4, 2)), "marks": np.zeros((2, 4), np.int64)}
    number = np.array([[-1, -1, 0, 1], [3, 4, 5, 6]])
    got = Pictures(rows).placed(arrays, "x", [marks], np.array([1, 0]), number)
    assert got["x"].tolist() == [[[0, 0]] * 4, [[0, 0], [5, 6], [0, 0], [0, 0]]]
    assert got["marks"].tolist() == [[0] * 4, [0, 1, 0, 0]]
    assert not arrays["x"].any()
    # two of five tokens of row 0 are one picture, which no chunk cuts
    columns = np.array([[0, 1, 2, 3, 4], [-1, -1, -1, -1, 0]])
    assert [Pictures(rows).ends(columns, step) for step in (1, 2, 5)] == [[1, 3, 4, 5], [3, 5], [5]]


@pytest.mark.all(but=("Blocks",))
@pytest.mark.parametrize("kind", [Square, Blocks])
def test_a_bundle_reads_pictures_in_prompts_of_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Tower]
) -> None:
    """The toy's three graphs generate what its module does with features at the tokens 7."""
    source = msgspec.structs.replace(toy(kind), picture_rules=PictureRules(feature_id=7))
    module: Any = toy(kind).module
    wholes: list[Any] = [source.module, module]
    for each in wholes:  # pictures that change the answer
        with torch.no_grad():
            for parameter in each.vision.parameters():
                parameter *= 30
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 6, "width": 6}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    source = msgspec.structs.replace(source, files={"preprocessor_config.json": tmp_path / "preprocessor_config.json"})
    monkeypatch.setattr(prepare, "load_source", lambda *_, **__: source)
    posexport.convert("toy", tmp_path / "toy", verify=False)
    session = posexport.load(tmp_path / "toy")
    one, two = (np.full((9, 7, 3), shade, np.uint8) for shade in (10, 250))
    prompts, images = [[3, 7, 7, 7, 7, 1], [7, 7, 7, 7, 2, 7, 7, 7, 7, 5, 1], [3, 1]], [[one], [two, one], []]
    expected = []
    for prompt, row in zip(prompts, images, strict=True):
        ids, pixels = list(prompt), [torch.from_numpy(session.prepare(images=each)["pixel_values"]) for each in row]
        for _ in range(4):
            with torch.no_grad():
                x_BTC = module.embed(torch.tensor([ids]))[0]
                places = [place for place, token in enumerate(prompt) if token == 7]
                for at, each in enumerate(pixels):
                    x_BTC[:, places[4 * at : 4 * at + 4]] = module.vision(pixel_values=each)[0]
                types = torch.tensor([[int(place in places) for place in range(len(ids))]])
                more = {"token_type_ids": types} if kind is Blocks else {}
                logits = module.decoder(x_BTC, torch.ones(1, len(ids), dtype=torch.int64), **more)[0]
            ids.append(int(logits[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    for chunk in (None, 3):
        done = session.generate(prompts, images=images, max_new_tokens=4, prefill_chunk_size=chunk)
        assert [completion.tokens for completion in done.completions] == expected
    assert session.generate(prompts[:1], images=[[two]], max_new_tokens=4).completions[0].tokens != expected[0]
    # of a bundle that was written before there were rules
    manifest = msgspec.structs.replace(session.manifest, picture_rules=None)
    older = Session(session.directory, manifest, session._chain)
    with pytest.raises(PosexportError, match="this bundle does not say how its prompts hold pictures: convert a"):
        older.generate(prompts, images=images)
    with pytest.raises(PosexportError, match="has no pipeline"):
        posexport.pipeline(older)
    assert older.generate([[3, 1]], max_new_tokens=4).completions[0].tokens == expected[2]


@pytest.mark.all
@pytest.mark.parametrize("wrong", ["order", "sizes", "number"])
def test_features_of_tiles_in_another_order_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """Also sizes by which the processor cuts pictures otherwise, and no number of tiles."""
    model, processor = anyres("llava_onevision")
    model.save_pretrained(tmp_path / "m")
    processor.save_pretrained(tmp_path / "m")
    said = "gives other logits for an image than its parts do"
    if wrong == "order":
        own = through_anyres.packed
        monkeypatch.setattr(through_anyres, "packed", lambda *given: own(*given)[::-1].copy())
    elif wrong == "sizes":
        processor.image_processor.image_grid_pinpoints = [[24, 24]]
        processor.save_pretrained(tmp_path / "m")
        said = "say other image_grid_pinpoints"
    else:
        settings = json.loads((tmp_path / "m/config.json").read_text())
        (tmp_path / "m/config.json").write_text(json.dumps({**settings, "vision_aspect_ratio": "square"}))
        said = "vision_aspect_ratio = 'square'; it must be anyres_max_ and a number"
    with pytest.raises(PosexportError, match=said):
        posexport.convert(str(tmp_path / "m"), tmp_path / "b", verify=False)
