"""Sounds compared with texts (CLAP, arXiv:2211.06687)."""

from posexport.base.tasks.task import Task

TASK = Task(
    name="zero-shot-audio-classification",
    what="how well every sound fits every text, and the vectors of both",
    outputs={
        "logits_per_audio": ("sounds", "texts"),
        "logits_per_text": ("texts", "sounds"),
        "text_embeds": ("texts", "channels"),
        "audio_embeds": ("sounds", "channels"),
    },
    ends=("Model",),
    needs=("text_config", "audio_config"),
)
