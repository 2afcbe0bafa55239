"""The next action of a trajectory (Decision Transformer, arXiv:2106.01345)."""

from posexport.base.spec import BATCH, SEQUENCE
from posexport.base.tasks.task import Task

TASK = Task(
    name="reinforcement-learning",
    what="the next state, action and return at every step of a trajectory",
    outputs=dict.fromkeys(("state_preds", "action_preds", "return_preds"), (BATCH, SEQUENCE, "channels")),
    ends=("DecisionTransformerModel",),
)
