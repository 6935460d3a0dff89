"""Compares callbacks with Lightning's, live: where EarlyStopping ends a run, and what LearningRateMonitor logs."""

import json
import logging
import math
import random
import subprocess
import warnings

import lightning
import pytest
import torch
from conftest import BUILD
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import Logger

EARLY_STOPPING = [
    ({}, [5, 4, 4, 4.5, 4, 3]),
    ({"patience": 2}, [3, 2, 1, 0]),
    ({"patience": 0}, [2, 1, 3]),
    ({"patience": 1}, [1, 1, 0]),
    ({"min_delta": 1.0, "patience": 2}, [5, 4, 3.875, 3, 3]),
    ({"min_delta": 1.0, "patience": 2, "mode": "max"}, [0, 1, 1, 5]),
    ({"min_delta": -0.5, "patience": 2}, [1, 1.25, 2, 3, 4]),
    ({}, [1, math.nan, 0]),
    ({}, [math.inf, 0]),
    ({"mode": "max"}, [-math.inf, 0]),
    ({"check_finite": False, "patience": 2}, [math.nan, 1, math.nan, 0, math.nan, math.nan, 0]),
    ({"check_finite": False, "patience": 2, "mode": "max"}, [1, math.inf, 2, 3, 4]),
    ({"check_finite": False, "patience": 2}, [1, -math.inf, 0, -math.inf, 0]),
    ({"stopping_threshold": 1.0}, [2, 1, 0.5, 0]),
    ({"stopping_threshold": 1.0, "mode": "max"}, [0, 1, 1.5, 2]),
    ({"divergence_threshold": 3.0}, [2, 3, 3.5, 0]),
    ({"divergence_threshold": 3.0, "mode": "max"}, [4, 3, 2.5, 9]),
    ({"stopping_threshold": 1.0, "divergence_threshold": 3.0, "check_finite": False}, [2, math.nan, math.inf, 0]),
]
OPTIMIZERS = [
    [("AdamW", 1, None)],
    [("SGD", 2, "step")],
    [("AdamW", 1, "epoch"), ("SGD", 1, "step")],
    [("SGD", 1, None), ("SGD", 1, "epoch"), ("SGD", 3, "step"), ("AdamW", 2, None), ("SGD", 1, None)],
]


def random_sequences(count):
    """The values are eighths, which are exact in float32, in which Lightning compares."""
    rng = random.Random(3)
    for _ in range(count):
        options = {"patience": rng.randint(0, 4), "mode": rng.choice(["min", "max"]),
                   "min_delta": rng.choice([0.0, 0.25, 1.0]), "check_finite": rng.random() < 0.5}
        for threshold in "stopping_threshold", "divergence_threshold":
            if rng.random() < 0.3:
                options[threshold] = rng.randint(-24, 24) / 8
        special = [math.nan, math.inf, -math.inf]
        yield options, [rng.choice(special) if rng.random() < 0.05 else rng.randint(-16, 16) / 8 for _ in range(10)]


def to_json(value):
    return value if math.isfinite(value) else str(value)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("callbacks")
    sequences = EARLY_STOPPING + list(random_sequences(40))
    job = {"early_stopping": [{"options": options, "values": [to_json(float(value)) for value in values]}
                              for options, values in sequences],
           "optimizers": [[{"class": name, "groups": groups, "schedule": schedule}
                           for name, groups, schedule in optimizers] for optimizers in OPTIMIZERS]}
    (folder / "job.json").write_text(json.dumps(job))
    subprocess.run([BUILD / "callback_runner", folder / "job.json", folder / "output.json"], check=True)
    return sequences, json.loads((folder / "output.json").read_text())


class Twin(lightning.LightningModule):
    def __init__(self, values=()):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.values = values

    def training_step(self, batch, _):
        return self.layer(batch).sum()

    def validation_step(self, batch, _):
        self.log("m", self.values[self.current_epoch])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(twin, batches, epochs, callback, folder, val=True, logger=False):
    loader = torch.utils.data.DataLoader(torch.ones(batches, 1, 1), batch_size=None)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[callback], logger=logger,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                                default_root_dir=folder, log_every_n_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(twin, loader, torch.utils.data.DataLoader(torch.ones(1, 1, 1), batch_size=None) if val else None)
    return trainer


def test_early_stopping_ends_at_the_same_epoch_for_the_same_reason(ours, tmp_path):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    sequences, results = ours
    reasons = set()
    for (options, values), mine in zip(sequences, results["early_stopping"], strict=True):
        callback = EarlyStopping("m", **options)
        trainer = fit(Twin(values), 1, len(values), callback, tmp_path)
        theirs = {"epochs": trainer.current_epoch, "stopped_epoch": callback.stopped_epoch,
                  "reason": callback.stopping_reason.value, "wait_count": callback.wait_count,
                  "best_score": to_json(callback.best_score.item())}
        assert mine == theirs, (options, values)
        reasons.add(mine["reason"])
    assert reasons == {0, 1, 2, 3, 4}


class Rows(Logger):
    name, version = "rows", 0

    def __init__(self):
        super().__init__()
        self.rows = []

    def log_metrics(self, metrics, step):
        self.rows.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass


class Several(Twin):
    """Steps all optimizers in each batch, and their schedules when they are due."""

    def __init__(self, optimizers):
        super().__init__()
        self.automatic_optimization = False
        self.described = optimizers

    def configure_optimizers(self):
        optimizers, schedules = [], []
        for name, groups, schedule in self.described:
            # Lightning looks for a momentum only in the first group's options.
            parameters = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": float(i + 1)} for i in range(groups)]
            options = {"momentum": 0.5} if name == "SGD" else {}
            optimizers.append(getattr(torch.optim, name)(parameters, lr=1.0, **options))
            if schedule:
                schedules.append({"scheduler": torch.optim.lr_scheduler.StepLR(optimizers[-1], 1, 0.5),
                                  "interval": schedule})
        return optimizers, schedules

    def training_step(self, batch, index):
        for optimizer in self.optimizers():
            optimizer.step()
        schedules = self.lr_schedulers() or []
        due = [schedule for _, _, schedule in self.described if schedule]
        for scheduler, interval in zip(schedules if isinstance(schedules, list) else [schedules], due, strict=True):
            if interval == "step" or index == 1:
                scheduler.step()

    def optimizers(self):
        made = super().optimizers()
        return made if isinstance(made, list) else [made]


@pytest.mark.parametrize("case", range(len(OPTIMIZERS)))
def test_learning_rates_have_the_same_names_and_values(ours, tmp_path, case):
    logger = Rows()
    fit(Several(OPTIMIZERS[case]), 2, 2, LearningRateMonitor(log_momentum=True, log_weight_decay=True), tmp_path,
        val=False, logger=logger)
    mine = ours[1]["optimizers"][case]
    names = {name for _, metrics in logger.rows for name in metrics if name.startswith("lr-")}
    assert {name for row in mine.values() for name in row} == names
    for name in names:
        values = [metrics[name] for _, metrics in logger.rows if name in metrics]
        here = [mine[step][name] for step in sorted(mine, key=int) if name in mine[step]]
        # Lightning logs an epoch's rate in a separate row; here it is in the row of the epoch's first step.
        assert list(dict.fromkeys(here)) == list(dict.fromkeys(values)), name
