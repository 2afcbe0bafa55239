"""The next steps of a series (PatchTST, arXiv:2211.14730)."""

from posexport.base.spec import BATCH
from posexport.base.tasks.task import Task

TASK = Task(
    name="time-series-forecasting",
    what="the next steps of all channels of a series",
    outputs={
        "prediction_outputs": (BATCH, "steps", "channels"),
        "mean_predictions": (BATCH, "steps"),
        "full_predictions": (BATCH, "steps", "quantiles"),
        "quantile_preds": (BATCH, "quantiles", "steps"),
    },
    ends=("ForPrediction",),
    auto="AutoModelForTimeSeriesPrediction",
)
