"""Compares the order of events in a fit with Lightning's, live: batches, optimizer steps and ends of epochs.

The batches are those of training, validation and sanity checks. Where docs/trainer.md differs, a rule accounts for it:
- the final state of a run is validated, whatever the interval (with_final_validation);
- a stop() inside an accumulation window waits for its step, so no job stops there (stops_inside_a_window);
- min_steps alone leaves min_epochs at 0, which Lightning then takes as 1 (lightning_trace uses 0);
- minima above their maxima, and a fraction as val_check_interval without check_val_every_n_epoch, are refused
  (is_refused);
- overfit_batches validates on training batches, of which limits may select some. Lightning takes as many batches, or
  the same fraction, of the validation loader, whatever the limits. Jobs with overfit_batches therefore have equal
  loaders and no limits;
- without a validation loader val_check_interval is ignored; Lightning refuses it if it exceeds the epoch's batches.
"""

import json
import logging
import random
import subprocess
import warnings

import lightning
import pytest
import torch
from conftest import BUILD
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.exceptions import MisconfigurationException

JOBS = [
    # (training batches, validation batches, options, batches after which the user stops)
    (3, 2, {"max_epochs": 2}, None),
    (3, 0, {"max_epochs": 2}, None),
    (3, 3, {"max_epochs": 1, "num_sanity_val_steps": 0}, None),
    (3, 3, {"max_epochs": 1, "num_sanity_val_steps": 1}, None),
    (3, 3, {"max_epochs": 1, "num_sanity_val_steps": -1}, None),
    (3, 3, {"max_epochs": 1, "num_sanity_val_steps": 9}, None),
    (3, 3, {"max_epochs": 1, "num_sanity_val_steps": 2, "limit_val_batches": 1}, None),
    (3, 3, {"max_epochs": 1, "limit_val_batches": 0}, None),
    (3, 3, {"max_epochs": 2, "limit_train_batches": 0}, None),
    (8, 4, {"max_epochs": 2, "limit_train_batches": 0.5, "limit_val_batches": 0.25}, None),
    (8, 4, {"max_epochs": 1, "limit_train_batches": 0.125}, None),
    (8, 4, {"max_epochs": 1, "limit_train_batches": 0.0625}, None),
    (8, 4, {"max_epochs": 1, "limit_val_batches": 0.125}, None),
    (3, 2, {"max_epochs": 1, "limit_train_batches": 9, "limit_val_batches": 9}, None),
    (8, 2, {"max_epochs": 1, "val_check_interval": 0.25}, None),
    (5, 2, {"max_epochs": 2, "val_check_interval": 0.5}, None),
    (3, 1, {"max_epochs": 1, "val_check_interval": 0.25}, None),
    (5, 2, {"max_epochs": 2, "val_check_interval": 2}, None),
    (5, 1, {"max_epochs": 2, "val_check_interval": 5}, None),
    (5, 1, {"max_epochs": 2, "val_check_interval": 6}, None),
    (5, 1, {"max_epochs": 3, "val_check_interval": 4, "check_val_every_n_epoch": None}, None),
    (3, 1, {"max_epochs": 4, "val_check_interval": 5, "check_val_every_n_epoch": None}, None),
    (3, 1, {"max_epochs": 4, "val_check_interval": 0.5, "check_val_every_n_epoch": None}, None),
    (2, 1, {"max_epochs": 4, "check_val_every_n_epoch": 2}, None),
    (2, 1, {"max_epochs": 5, "check_val_every_n_epoch": 2}, None),
    (4, 1, {"max_epochs": 4, "check_val_every_n_epoch": 3, "val_check_interval": 2}, None),
    (4, 2, {"max_epochs": 9, "max_steps": 6}, None),
    (4, 2, {"max_epochs": -1, "max_steps": 8}, None),
    (4, 2, {"max_epochs": 9, "max_steps": 2, "val_check_interval": 2}, None),
    (5, 1, {"max_epochs": 2, "accumulate_grad_batches": 2}, None),
    (5, 1, {"max_epochs": 9, "max_steps": 4, "accumulate_grad_batches": 2}, None),
    (5, 1, {"max_epochs": 2, "accumulate_grad_batches": 9}, None),
    (4, 1, {"max_epochs": 4, "accumulate_grad_batches": [[0, 4], [2, 2]]}, None),
    (4, 1, {"max_epochs": 3, "accumulate_grad_batches": [[1, 3]]}, None),
    (4, 1, {"max_epochs": 2, "accumulate_grad_batches": 2, "val_check_interval": 1}, None),
    (5, 5, {"max_epochs": 2, "overfit_batches": 2}, None),
    (4, 4, {"max_epochs": 1, "overfit_batches": 0.5}, None),
    (4, 4, {"max_epochs": 2, "overfit_batches": 3, "val_check_interval": 1}, None),
    (4, 2, {"max_epochs": 3}, 2),
    (4, 2, {"max_epochs": 3}, 4),
    (4, 2, {"max_epochs": 3, "min_epochs": 2}, 1),
    (4, 2, {"max_epochs": 3, "min_epochs": 1}, 6),
    (4, 2, {"max_epochs": 3, "min_steps": 3}, 1),
    (4, 2, {"max_epochs": 3, "min_steps": 6}, 3),
    (4, 2, {"max_epochs": 3, "min_epochs": 2, "min_steps": 5}, 1),
    (4, 1, {"max_epochs": 3, "min_steps": 3, "accumulate_grad_batches": 2}, 2),
    (4, 1, {"max_epochs": 3, "val_check_interval": 2}, 3),
    (4, 1, {"max_epochs": 6, "check_val_every_n_epoch": 3}, 5),
    (4, 1, {"max_epochs": 6, "check_val_every_n_epoch": None, "val_check_interval": 3}, 5),
    (4, 1, {"max_epochs": 2, "min_epochs": 3}, None),
    (4, 1, {"max_epochs": 2, "max_steps": 3, "min_steps": 4}, None),
    (4, 1, {"max_epochs": 2, "check_val_every_n_epoch": None}, None),
]


def random_jobs(count):
    rng = random.Random(11)
    jobs = []
    while len(jobs) < count:
        train, val = rng.randint(1, 8), rng.randint(0, 4)
        options = {"max_epochs": rng.randint(1, 4)}
        choices = {
            "max_steps": lambda: rng.randint(1, 12),
            "min_epochs": lambda: rng.randint(1, 3),
            "min_steps": lambda: rng.randint(1, 12),
            "limit_train_batches": lambda: rng.choice([1, 2, 5, 0.5, 0.75]),
            "limit_val_batches": lambda: rng.choice([0, 1, 3, 0.5, 1.0]),
            "val_check_interval": lambda: rng.choice([1, 2, 3, 0.25, 0.5]),
            "check_val_every_n_epoch": lambda: rng.choice([1, 2, 3, None]),
            "num_sanity_val_steps": lambda: rng.choice([-1, 0, 1]),
            "overfit_batches": lambda: rng.choice([1, 2, 0.5]),
            "accumulate_grad_batches": lambda: rng.choice([2, 3, [[0, 2], [1, 3]], [[2, 4]]]),
        }
        for name, choose in choices.items():
            if rng.random() < (0.1 if name == "overfit_batches" else 0.3):
                options[name] = choose()
        if "overfit_batches" in options:
            val = train
            options = {name: value for name, value in options.items() if not name.startswith("limit_")}
        if val == 0:
            options.pop("val_check_interval", None)
        job = (train, val, options, rng.randint(1, 12) if rng.random() < 0.4 else None)
        if not stops_inside_a_window(job) and not is_refused(job):
            jobs.append(job)
    return jobs


def batches_of(limit, total):
    return min(limit, total) if isinstance(limit, int) else int(limit * total)


def limits_of(job):
    """Returns the number of training batches in an epoch, and of batches in a validation."""
    train, val, options, _ = job
    overfit = options.get("overfit_batches", 0)
    if overfit:
        return batches_of(overfit, train), batches_of(overfit, val)
    return (batches_of(options.get("limit_train_batches", 1.0), train),
            batches_of(options.get("limit_val_batches", 1.0), val))


def accumulation(options, epoch):
    schedule = options.get("accumulate_grad_batches", 1)
    if isinstance(schedule, int):
        return schedule
    return ([1] + [batches for begin, batches in schedule if begin <= epoch])[-1]


def stops_inside_a_window(job):
    options, stop_at = job[2:]
    per_epoch = limits_of(job)[0]
    if not stop_at or not per_epoch:
        return False
    epoch, before = divmod(stop_at - 1, per_epoch)
    is_last = before + 1 == per_epoch
    return not is_last and (before + 1) % accumulation(options, epoch) != 0


def is_refused(job):
    options = job[2]
    above = any(0 <= options.get(f"max_{what}", -1) < options.get(f"min_{what}", 0) for what in ("epochs", "steps"))
    over_epochs = "check_val_every_n_epoch" in options and options["check_val_every_n_epoch"] is None
    return above or (over_epochs and not isinstance(options.get("val_check_interval", 1.0), int))


def with_final_validation(job, trace):
    """Returns Lightning's trace as if its run had validated the final state."""
    val = limits_of(job)[1]
    trained = [i for i, event in enumerate(trace) if event[0] == "t"]
    if not trained or not val or any(event[0] == "v" for event in trace[trained[-1]:]):
        return trace
    assert trace[-1] == "E"
    return trace[:-1] + [f"v{i}" for i in range(val)] + ["E"]


class Traced(lightning.LightningModule):
    def __init__(self, stop_at):
        super().__init__()
        self.net, self.stop_at, self.batches, self.trace = torch.nn.Linear(1, 1), stop_at, 0, []

    def training_step(self, batch, index):
        self.trace.append(f"t{index}")
        return self.net(batch[0]).sum()

    def validation_step(self, batch, index):
        self.trace.append(f"{'s' if self.trainer.sanity_checking else 'v'}{index}")

    def on_before_optimizer_step(self, optimizer):
        self.trace.append("step")

    def on_train_batch_end(self, *args):
        self.batches += 1
        if self.batches == self.stop_at:
            self.trainer.should_stop = True

    def on_train_epoch_end(self):
        self.trace.append("E")

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), 0.1)


def lightning_trace(job):
    train, val, options, stop_at = job
    options = {"min_epochs": 0, **options}
    callbacks = []
    if isinstance(options.get("accumulate_grad_batches"), list):
        callbacks = [GradientAccumulationScheduler(dict(options.pop("accumulate_grad_batches")))]
    loader = lambda size: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(size, 1)), batch_size=1)
    module = Traced(stop_at)
    try:
        trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                    enable_model_summary=False, callbacks=callbacks, **options)
        trainer.fit(module, loader(train), loader(val) if val else None)
    except (MisconfigurationException, ValueError):
        return ["error"]
    return module.trace


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Returns for every job: the job, our trace, Lightning's trace."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    jobs = JOBS + random_jobs(60)
    folder = tmp_path_factory.mktemp("loops")
    names = ("train", "val", "options", "stop_at")
    (folder / "jobs.json").write_text(json.dumps([dict(zip(names, job)) for job in jobs]))
    subprocess.run([BUILD / "loop_runner", folder / "jobs.json", folder / "output.json"], check=True)
    ours = json.loads((folder / "output.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = [lightning_trace(job) for job in jobs]
    return list(zip(jobs, ours, theirs, strict=True))


def expected(job, theirs):
    return ["error"] if is_refused(job) else with_final_validation(job, theirs)


def test_the_order_is_lightnings(traces):
    different = [f"{job}\n  ours      {' '.join(ours)}\n  Lightning {' '.join(theirs)}"
                 for job, ours, theirs in traces if ours != expected(job, theirs)]
    assert not different, "\n".join(different)


def test_the_jobs_reach_what_they_are_for(traces):
    kinds = {event.rstrip("0123456789") for _, ours, _ in traces for event in ours}
    assert kinds == {"s", "t", "v", "step", "E", "error"}
    assert any(ours == theirs != ["error"] and job[3] for job, ours, theirs in traces)
