"""The small encoder of one encoding, and its training.

Two layers with the normalisation first (Xiong et al. 2020, arXiv:2002.04745: it needs no long warm-up). Encodings begin
with the initialisation of their constructors; all other weights start equal in all models. AdamW
at 3e-3 (Loshchilov and Hutter 2019, arXiv:1711.05101), warmed up over a tenth of the steps and lowered linearly to a
tenth. Parameters of encodings learn ten times faster: a table of biases begins near 0 and has to reach scores of some
units, which AdamW's small steps would not in a few hundred.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posexport.encodings.build import build
from posexport.encodings.encoding import Encoding
from posexport.errors import PosexportError
from posexport.models.definition import Definition
from posexport.sources.builtin import models
from posexport.study.compare import tasks
from posexport.study.compare.records import Setup

RATE, OWN_FACTOR, LOWEST_RATE, WARM_UP = 3e-3, 10.0, 0.1, 0.1
WEIGHT_DECAY, BETAS, LARGEST_GRADIENT = 0.01, (0.9, 0.98), 1.0
#: standard deviation of token embeddings; sinusoids are three times larger, learned tables fifteen times smaller
TOKEN_STD = 0.3
TASK = "token-classification"


def make(encoding: str, setup: Setup) -> Definition:
    """The untrained model of an encoding, position tables as long as the training's rows."""
    model = _fresh(encoding, setup)
    same = _fresh("nope", setup).state_dict()
    parameters = model.state_dict()
    shared = {key: value for key, value in same.items() if key in parameters and parameters[key].shape == value.shape}
    model.load_state_dict(shared, strict=False)
    return model


def _fresh(encoding: str, setup: Setup) -> Definition:
    torch.manual_seed(setup.seed)
    kind, _ = models()[f"encoder-{encoding}"]
    config = kind.config.of(
        vocab=tasks.VOCAB,
        hidden=setup.hidden,
        heads=setup.heads,
        layers=setup.layers,
        feedforward=setup.feedforward,
        types=0,
        norm="pre",
        final_norm=True,
    )
    sizes = {**kind.sizes(config), "max_positions": setup.length}
    model = kind.make(config, build(encoding, sizes, {})[0], TASK, tasks.ANSWERS)
    limit = model.limits.max_length
    if limit is not None and limit < setup.length:
        raise PosexportError(f"{encoding} takes {limit} positions, training needs {setup.length}")
    nn.init.normal_(model.get_parameter("encoder.embeddings.token.weight"), std=TOKEN_STD)
    return model


def own_parameters(model: nn.Module) -> list[nn.Parameter]:
    parameters = {id(p): p for module in model.modules() if isinstance(module, Encoding) for p in module.parameters()}
    return list(parameters.values())


def train(model: Definition, setup: Setup) -> float:
    """Train in place; the last tenth's mean loss, all weights of the tasks counted.

    Raises:
        PosexportError: the loss is no longer a number.
    """
    parameters = own_parameters(model)
    of_encoding = {id(p) for p in parameters}
    rest = [p for p in model.parameters() if id(p) not in of_encoding]
    groups = [{"params": rest, "lr": RATE}, {"params": parameters, "lr": RATE * OWN_FACTOR}]
    optimizer = torch.optim.AdamW(groups, betas=BETAS, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, setup.steps))
    losses = []
    model.train()
    for step in range(setup.steps):
        loss = _loss(model, *tasks.draw(np.random.default_rng([setup.seed, 0, step]), setup.rows, setup.length))
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise PosexportError(f"training diverged: the loss of step {step + 1} is {losses[-1]}")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        schedule.step()
    model.eval()
    last = losses[-max(1, setup.steps // 10) :]
    return sum(last) / len(last)


def _rate(step: int, steps: int) -> float:
    warm = (step + 1) / max(1.0, WARM_UP * steps)
    return min(1.0, warm) * (1 - (1 - LOWEST_RATE) * step / steps)


def _loss(model: nn.Module, tokens: tasks.Ints, answers: tasks.Ints) -> Tensor:
    ids = torch.from_numpy(tokens)
    (logits,) = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    total: Tensor = logits.new_zeros(())
    for task, targets in zip(tasks.TASKS, torch.from_numpy(answers), strict=True):
        if not (targets != tasks.NOT_ASKED).any():  # the mean of no losses is not a number
            continue
        predictions = logits[..., task.channels].flatten(0, 1)
        total = total + task.weight * F.cross_entropy(predictions, targets.flatten(), ignore_index=tasks.NOT_ASKED)
    return total
