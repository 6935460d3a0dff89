"""Reads the loggers' files with the programs that they are written for: TensorBoard itself, csv, PyYAML and json."""

import csv
import json
import math
import struct
import subprocess
import time

import pytest
import yaml
from conftest import BUILD
from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.io_wrapper import IsTensorFlowEventsFile
from tensorboard.plugins.hparams import api_pb2, metadata
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.util import tensor_util

METRICS = {"train_loss": 0.1, "λ/lr, \"x\"": 1e-5, "nan": "nan", "inf": "inf", "-inf": "-inf", "zero": 0.0}
HYPERPARAMS = {"lr": 1e-5, "epochs": 3, "huge": 2**40, "model": "mlp: |\"ü\"|", "ema": True, "empty": ""}


def float32(value):
    return struct.unpack("f", struct.pack("f", float(value)))[0]


def same(a, b):
    return a == b or (math.isnan(a) and math.isnan(b))


@pytest.fixture
def log(tmp_path):
    def run(*calls):
        folder = tmp_path / "run"
        (tmp_path / "job.json").write_text(json.dumps({"folder": str(folder), "calls": calls}))
        subprocess.run([BUILD / "logger_runner", tmp_path / "job.json"], check=True)
        return folder

    return run


def accumulate(folder, module=plugin_event_accumulator):
    """Returns what TensorBoard shows (scalars are tensors there), or what scripts that read event files get."""
    accumulator = module.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_tensorboard_reads_every_scalar_with_its_step_and_time(log):
    before = time.time()
    steps = [0, 1, 7, 2**40]
    folder = log(*({"metrics": METRICS, "step": step} for step in steps))
    shown, scripts = accumulate(folder), accumulate(folder, event_accumulator)
    assert set(shown.Tags()["tensors"]) == set(scripts.Tags()["scalars"]) == set(METRICS)
    for name, value in METRICS.items():
        for events, number in ((shown.Tensors(name), lambda e: tensor_util.make_ndarray(e.tensor_proto).item()),
                               (scripts.Scalars(name), lambda e: e.value)):
            assert [event.step for event in events] == steps
            for event in events:
                assert same(number(event), float32(value)), name
                assert before <= event.wall_time <= time.time()
        assert shown.SummaryMetadata(name).plugin_data.plugin_name == "scalars"
    assert before <= shown.FirstEventTimestamp() <= time.time()


def test_tensorboard_reads_the_records_as_written(log):
    folder = log({"metrics": METRICS, "step": 3})
    (file,) = folder.glob("events*")
    assert IsTensorFlowEventsFile(str(file))
    version, row = EventFileLoader(str(file)).Load()
    assert version.file_version == "brain.Event:2"
    assert row.step == 3
    assert len(row.summary.value) == len(METRICS)


@pytest.mark.parametrize("status, code", {"success": api_pb2.STATUS_SUCCESS,
                                          "failed": api_pb2.STATUS_FAILURE}.items())
def test_tensorboard_shows_hyperparameters_as_text_and_in_its_dashboard(log, status, code):
    accumulator = accumulate(log({"hyperparams": HYPERPARAMS}, {"finalize": status}))
    (event,) = accumulator.Tensors("hyperparameters")
    text = tensor_util.make_ndarray(event.tensor_proto).item().decode()
    assert "| lr | 1e-05 |" in text and "mlp: \\|\"ü\"\\|" in text
    about = accumulator.SummaryMetadata("hyperparameters")
    assert about.plugin_data.plugin_name == text_metadata.PLUGIN_NAME
    tags = accumulator.PluginTagToContent(metadata.PLUGIN_NAME)
    start = metadata.parse_session_start_info_plugin_data(tags[metadata.SESSION_START_INFO_TAG])
    read = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert read == HYPERPARAMS and type(read["ema"]) is bool
    assert abs(start.start_time_secs - time.time()) < 60
    end = metadata.parse_session_end_info_plugin_data(tags[metadata.SESSION_END_INFO_TAG])
    assert end.status == code
    assert accumulator.Tensors(metadata.SESSION_START_INFO_TAG)


def test_a_resumed_run_has_every_step_once_everywhere(log):
    rows = [{"metrics": {"loss": step / 8, "late" if step > 4 else "early": step}, "step": step}
            for step in range(8)]
    killed, resumed = rows[:6], rows[4:]
    folder = log(*killed, {"restart": True}, {"resume_from": 3}, *resumed)
    steps = list(range(8))
    events = accumulate(folder).Tensors("loss")
    assert [event.step for event in events] == steps
    assert [tensor_util.make_ndarray(event.tensor_proto).item() for event in events] == [s / 8 for s in steps]
    assert [event.step for event in accumulate(folder, event_accumulator).Scalars("loss")] == steps
    with open(folder / "metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [int(row["step"]) for row in table] == steps
    assert [row["late"] for row in table] == [""] * 5 + ["5", "6", "7"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == steps


def test_python_reads_the_doubles_of_csv_and_json_lines(log):
    values = METRICS | {"third": 1 / 3, "tiny": 5e-324, "big": 1.7976931348623157e308}
    folder = log({"metrics": values, "step": 3}, {"hyperparams": HYPERPARAMS}, {"finalize": "success"})
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert row.pop("step") == "3" and lines[0].pop("step") == 3
    assert abs(lines[0].pop("wall_time") - time.time()) < 60
    for name, value in values.items():
        assert same(float(row[name]), float(value)) and same(float(lines[0][name]), float(value)), name
    assert row.keys() == lines[0].keys() == values.keys()
    assert lines[1]["hyperparams"] == HYPERPARAMS
    assert lines[2]["status"] == "success"
    read = yaml.safe_load((folder / "hparams.yaml").read_text(encoding="utf-8"))
    assert read == HYPERPARAMS
    assert {name: type(read[name]) for name in read} == {name: type(HYPERPARAMS[name]) for name in read}
