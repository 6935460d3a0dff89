"""Runs benchmarks/gpu on the CPU: every part runs in small sizes through the code that a GPU runs."""

import json
import pathlib
import re
import subprocess
import sys
import time

import pytest
from conftest import BUILD

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = ROOT / "benchmarks" / "gpu"
sys.path.insert(0, str(DRIVER.parent))
from gpu_parts import context, duels, networks, unit_tests  # noqa: E402

PARTS = ["tests", "modes", "sync", "fp8", "gpt2", "vision"]
# Some cases of each part, which cover every network, mode and peer. `benchmarks/gpu all --device cpu` runs
# all cases.
SOME = {"tests": "core_test|convnet|gpt-tiny 32-true",
        "modes": "gpt2 32-true|gpt2 16-mixed|resnet50 bf16-mixed|vit-l bf16-true|vit-l 16-true",
        "sync": "fused-sgd",
        "fp8": "DelayedScaling|Float8BlockScaling",
        "gpt2": "bf16-mixed|16-mixed off device trainer",
        "vision": "resnet50 bf16-mixed|vit-l bf16-mixed off device hand torch.compile"}


def run(*arguments):
    return subprocess.run([sys.executable, DRIVER, "--build", BUILD, *arguments], capture_output=True, text=True,
                          check=False)


@pytest.mark.parametrize("part", SOME)
def test_rehearses(part, tmp_path):
    done = run(part, "--device", "cpu", "--only", SOME[part], "--results", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = tmp_path.glob("*.json")
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d-\d{{6}}-gpu-{part}-cpu-[a-z0-9-]+\.json", file.name)
    found = json.loads(file.read_text())
    assert found["benchmark"] == f"gpu {part}" and found["rehearsal"] and found["date"]
    assert {"mantissa", "libtorch", "torch", "lightning", "safetensors", "python"} <= found["versions"].keys()
    rows = [row for row in found["rows"] if "left_out" not in row]
    assert rows and all("error" not in row for row in rows)
    for row in rows:
        if "unit tests" in row:
            assert row["tests"] and row["passed"] + row["skipped"] == len(row["tests"])
            # A reason is printed once, below the table; the rows of the programs have its number.
            for reason in row["reasons"]:
                assert done.stdout.count(reason) == 1 and f"\n({row['why'][1]}) " in done.stdout
        if "model" not in row:
            continue
        assert row["model"] in done.stdout
        assert 0 <= row["loss_difference"] <= row["tolerance"]
        if part != "tests":
            assert min(row[f"{side}_{what}"] for side in ("ours", "theirs") for what in ("ms", "peak_mib")) > 0
            assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
    assert "/" not in found["device"]["name"]


def test_waits_of_the_host_are_counted_and_a_step_is_replayed(tmp_path):
    assert run("sync", "--device", "cpu", "--only", "recipe|hand|mantissa trainer|PyTorch|whole step", "--json", tmp_path / "sync.json").returncode == 0
    rows = json.loads((tmp_path / "sync.json").read_text())["rows"]
    syncs = {(row["program"], row["loop"], row["optimizer"]): row["syncs_a_step"] for row in rows if "program" in row}
    assert syncs["mantissa", "recipe", "fused-sgd"] == syncs["mantissa", "hand", "fused-sgd"] == 0
    assert syncs["mantissa", "trainer", "fused-sgd"] == 1  # the loss, which is in the host's memory here
    # The scaler reads its flag if the optimizer does not take it. AdamW's kernel makes the other reads, the
    # same on both sides.
    fused = syncs["mantissa", "recipe", "fused-adamw"]
    assert syncs["mantissa", "hand", "fused-adamw"] == fused == syncs["PyTorch", "amp", "fused-adamw"]
    assert syncs["mantissa", "recipe", "adamw"] == fused + 1
    (graph,) = (row for row in rows if "graph" in row)
    assert graph["equal_scale"] and graph["equal_weights"] and graph["skipped"] == [2, 3, 7, 12]


def test_a_unit_test_that_fails_is_a_failed_case(tmp_path):
    program = tmp_path / "wrong_test"
    program.write_text(f"""#!/bin/sh
case $* in
  *--gtest_list_tests*) printf 'Suite.\\n  FailsOnCuda\\n'; exit 0 ;;
esac
for argument; do
  case $argument in --gtest_output=xml:*) file=${{argument#*xml:}} ;; esac
done
echo '<testsuites><testsuite><testcase classname="Suite" name="FailsOnCuda"><failure message="1 is not 2"/></testcase>' >$file
echo '</testsuite></testsuites>' >>$file
exit 1
""")
    program.chmod(0o755)
    part = make_context(tmp_path)
    part.build = tmp_path
    unit_tests.run(part)
    assert part.finish() == 1
    (row,) = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert row["error"] == "1 of 1 failed: Suite.FailsOnCuda: 1 is not 2"


@pytest.mark.skipif(subprocess.run([BUILD / "gpu_train", "--facts", "cuda"], capture_output=True, check=False,
                                   text=True).stdout.find("why_no_device") < 0, reason="there is a GPU")
@pytest.mark.parametrize("part", [*PARTS, "all"])
def test_without_a_gpu_says_so_in_one_line(part):
    done = run(part)
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"benchmarks/gpu: found no GPU: .*\n", done.stderr)


@pytest.mark.parametrize("words", [
    *(["modes", "--device", device] for device in ("auto", "cpu:0", "tpu", "cuda:x", "mps", "")),
    *(["modes", "--device", "cpu", "--seconds", seconds] for seconds in ("0", "-5", "nan", "inf", "soon")),
    ["modes", "--device", "cpu", "--only", "["], ["modes", "sync", "modes"], ["all", "sync"]], ids=" ".join)
def test_wrong_words_are_refused_before_the_first_case(words):
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr and "error: " in done.stderr.splitlines()[-1]


def test_a_run_that_measures_nothing_is_no_success():
    done = run("sync", "--device", "cpu", "--only", "nosuchcase")
    assert done.returncode == 1
    assert "sync: --only matches no case" in done.stdout
    assert done.stderr == "benchmarks/gpu: no case was measured\n"


@pytest.mark.parametrize("option, place", [("--results", "file"), ("--results", "file/folder"), ("--json", "file/x.json"),
                                           ("--json", ".")])
def test_where_no_results_can_be_written_nothing_is_measured(option, place, tmp_path):
    (tmp_path / "file").write_text("")
    done = run("sync", "--device", "cpu", option, tmp_path / place)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(f"benchmarks/gpu: no results can be written into .*; choose another place with {option}\n", done.stderr)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_results_that_cannot_be_written_later_are_reported_once(tmp_path, capsys):
    part = make_context(tmp_path)
    part.table([context.Column("case", 6)])
    part.case({"case": "first"}, lambda: {})
    (tmp_path / "results.json").unlink()
    (tmp_path / "results.json").mkdir()
    part.case({"case": "second"}, lambda: {})
    part.case({"case": "third"}, lambda: {})
    assert part.finish() == 1 and part.measured == 3
    printed = capsys.readouterr()
    assert re.fullmatch(r"benchmarks/gpu: warning: .*results.json cannot be written: Is a directory\n", printed.err)
    assert "third" in printed.out and "written:" not in printed.out
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_a_python_that_lacks_something_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(context.importlib.util, "find_spec", lambda name: None if name != "torch" else name)
    with pytest.raises(context.Failure, match="has no lightning, safetensors: start .* or run make parity"):
        context.find_python(tmp_path)
    (tmp_path / "libexec").mkdir()  # a package
    with pytest.raises(context.Failure, match="that has torch, lightning and safetensors$"):
        context.find_python(tmp_path)


def test_another_release_of_pytorch_is_refused(tmp_path):
    program = tmp_path / "gpu_train"
    program.write_text("""#!/bin/sh\necho '{"device": {"name": "CPU"}, "versions": {"libtorch": "1.0.0"}}'\n""")
    program.chmod(0o755)
    done = run("modes", "--device", "cpu", "--build", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"benchmarks/gpu: .* has PyTorch \S+, and our programs are linked with libtorch 1.0.0: .*\n", done.stderr)


@pytest.mark.parametrize("program", ["gpu_train", "gpu_graph"])
def test_our_programs_say_how_they_are_called(program):
    def call(*words):
        done = subprocess.run([BUILD / program, *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    status, output, _ = call("--help")
    assert status == 0 and output.startswith(f"usage: {program} ")
    status, _, errors = call("--halp")
    assert status == 2 and errors.startswith(f"usage: {program} ")
    assert call("nofile.json") == (1, "", f"{program}: 'nofile.json' cannot be read: No such file or directory\n")


def test_an_unknown_part_names_those_there_are():
    done = run("speed")
    assert done.returncode == 2
    assert all(part in done.stderr for part in [*PARTS, "all"])


def make_context(tmp_path, **options):
    facts = {"device": {"name": "CPU"}, "versions": {}}
    return context.Context("modes", device="cpu", build=BUILD, python=sys.executable, facts=facts,
                           json_file=tmp_path / "results.json", **options)


def test_no_time_counts_where_the_sides_differ(tmp_path, capsys):
    """The check of results can fail, even with a GPU's tolerance: at step 1, the first one after an update."""
    part = make_context(tmp_path)
    part.table([context.Column("case", 6), context.Column("ratio", 6, ".2f")])
    with duels.Duels(part) as pairs:
        def measure(**ours):
            return pairs.run(networks.job(part, "gpt2", "32-true"), ours={"loop": "hand", **ours},
                             theirs={"loop": "amp"}, tolerance=duels.TOLERANCE["32-true"])

        assert part.case({"case": "rate"}, lambda: measure(lr=2e-3)) is None
        assert part.case({"case": "file"}, lambda: measure(weights="/nowhere")) is None
        assert part.case({"case": "agrees"}, measure)["ratio"] > 0
    assert part.finish() == 1
    rate, file, agrees = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert "losses differ at step 1" in rate["error"] and "ours_ms" not in rate
    assert "/nowhere" in file["error"]
    assert "error" not in agrees
    assert re.search(r"rate +error: the losses differ at step 1", capsys.readouterr().out)


@pytest.mark.parametrize("text, said", [
    ("gpu_train: CUDA error: device-side assert triggered\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n",
     "gpu_train: CUDA error: device-side assert triggered"),
    ("Traceback (most recent call last):\n  File \"x\"\n    error: no\ntorch.OutOfMemoryError: CUDA out of memory.\nSee docs\n",
     "torch.OutOfMemoryError: CUDA out of memory."),
    ("terminate called after throwing an instance of 'c10::Error'\n  what():  no kernel\nframe #0: f()\n", "what():  no kernel"),
    ("Killed\n", "Killed"), ("", "(it wrote no error)")])
def test_the_line_that_says_what_went_wrong(text, said):
    assert context.what_went_wrong(text) == said


def test_a_part_ends_in_time_and_says_what_it_left_out(tmp_path):
    part = make_context(tmp_path, seconds=1)
    part.table([context.Column("case", 6)])
    part.case({"case": "slow"}, lambda: {"out": part.run_python("-c", "import time; time.sleep(60)")})
    part.case({"case": "late"}, lambda: {"out": "never"})
    assert part.finish() == 0
    slow, late = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert "still running" in slow["left_out"] and slow["seconds"] < 30
    assert late["left_out"] == "out of time: not begun"


def test_what_a_case_started_ends_with_it(tmp_path):
    part = make_context(tmp_path, seconds=2)
    part.python = "sh"
    file = tmp_path / "pid"
    part.case({"case": "parent"}, lambda: {"out": part.run_python("-c", f"sleep 60 & echo $! > '{file}'; wait")})
    assert ends_within(30, pathlib.Path("/proc", file.read_text().strip(), "status"))


def ends_within(seconds, status):
    """True if a process dies in that time. A killed process stays listed until its parent has waited for it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if "State:\tZ" in status.read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False
