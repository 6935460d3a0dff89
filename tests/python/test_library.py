"""build/libmantissa_kernels.so in a Python process: what it loads, and how it is switched."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import LIBRARY

PREAMBLE = f"""
import torch
LIBRARY = {str(LIBRARY)!r}

def results():
    "Of operations whose order of sums, roundings or exponentials are not PyTorch's: one at least on every CPU."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        a, b = (torch.randn(64, 600, generator=generator).to(dtype) for _ in range(2))
        heads = a.view(1, 4, 150, 64)
        found += [a @ b.T, torch.nn.functional.gelu(a), torch.nn.functional.scaled_dot_product_attention(*[heads] * 3)]
    torch.set_num_threads(threads)
    return found

PYTORCHS = results()
def is_ours():
    return not all(map(torch.equal, results(), PYTORCHS))
"""

def run_python(code, **environment):
    """Runs `code` in a separate process, as a program would; returns its stderr."""
    unset = {name: value for name, value in os.environ.items()
             if not name.startswith("MANTISSA_") or name == "MANTISSA_CACHE_DIR"}
    chosen = {"MANTISSA_KERNELS": "generic"}  # runs on every CPU, whichever kernel is fastest there
    done = subprocess.run([sys.executable, "-c", PREAMBLE + code], env=unset | chosen | environment, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_loading_switches_on_in_silence():
    assert run_python("""
assert not is_ours()
torch.ops.load_library(LIBRARY)
kernels = torch.ops.mantissa_kernels
assert is_ours() and kernels.enabled() and torch.__version__.startswith(kernels.torch_version())
kernels.disable()
assert not is_ours() and not kernels.enabled()
assert kernels.enable() and is_ours()
""") == ""


def test_the_process_keeps_one_libtorch_and_one_openmp():
    run_python("""
import pathlib
torch.ops.load_library(LIBRARY)
a = torch.randn(300, 300).half()
a @ a
files = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
torch_folder = pathlib.Path(torch.__file__).resolve().parent
for stem in ("libtorch_cpu", "libc10.", "libtorch_python"):
    found = [file for file in files if stem in file]
    assert len(found) == 1 and torch_folder in pathlib.Path(found[0]).resolve().parents, found
assert len([file for file in files if any(s in file for s in ("libgomp", "libomp", "libiomp"))]) == 1, files
""")


def test_no_symbol_of_the_rooms_is_visible():
    """Otherwise they would be used for those of a C++ program that links Mantissa and embeds Python."""
    symbols = subprocess.run(["nm", "-DC", "--defined-only", LIBRARY], check=True, capture_output=True, text=True)
    assert "mantissa" not in symbols.stdout


def test_the_environment_keeps_them_off():
    assert run_python("""
torch.ops.load_library(LIBRARY)
assert not is_ours() and not torch.ops.mantissa_kernels.enabled() and not torch.ops.mantissa_kernels.enable()
""", MANTISSA_CPU_KERNELS="0") == ""


@pytest.mark.parametrize(("name", "value"), [("MANTISSA_CPU_KERNELS", "off"), ("MANTISSA_MAX_ISA", "mmx"),
                                              ("MANTISSA_KERNELS", "mmx"), ("MANTISSA_KEEP_THREADS_APART", "on")])
def test_a_wrong_environment_is_a_warning_when_loaded_and_an_error_when_asked(name, value):
    """No exception may pass through dlopen(): it would end the process."""
    assert f"not switched on: {name}={value}" in run_python(f"""
torch.ops.load_library(LIBRARY)
assert not is_ours()
try:
    torch.ops.mantissa_kernels.enable()
except ValueError as error:
    assert "{name}={value}" in str(error)
else:
    raise AssertionError("no error")
""", **{name: value})


@pytest.mark.parametrize(("value", "is_watched"), [("", True), ("0", False)])
def test_threads_are_kept_apart_unless_the_environment_forbids_it(value, is_watched):
    run_python(f"""
import pathlib
torch.ops.load_library(LIBRARY)
def names():
    return [(thread / "comm").read_text().strip() for thread in pathlib.Path("/proc/self/task").iterdir()]
for _ in range(10_000):  # a new thread has the old one's name at first
    if "threads-apart" in names():
        break
assert ("threads-apart" in names()) is {is_watched}
""", MANTISSA_KEEP_THREADS_APART=value)


@pytest.mark.parametrize("tier", ["generic", "avx2"])
def test_a_tier_can_be_chosen(tier):
    run_python(f"""
torch.ops.load_library(LIBRARY)
assert torch.ops.mantissa_kernels.tier() in ("generic", {tier!r})
""", MANTISSA_MAX_ISA=tier)


def test_loading_twice_changes_nothing(tmp_path):
    """Loads the same file, and a copy of it, as from a wheel beside a build folder."""
    copy = shutil.copy(LIBRARY, tmp_path / "copy.so")
    assert "loaded a second time" in run_python(f"""
torch.ops.load_library(LIBRARY)
torch.ops.mantissa_kernels.disable()
torch.ops.load_library(LIBRARY)
torch.ops.load_library({str(copy)!r})
assert not is_ours() and not torch.ops.mantissa_kernels.enabled()
assert torch.ops.mantissa_kernels.enable() and is_ours()
""")


def test_another_release_of_pytorch_is_refused(tmp_path):
    """A library of another release than the process's: the layout of its classes would differ."""
    release = torch.__version__.split("+")[0]
    built_with = f"TORCH_VERSION={release},".encode()
    code = LIBRARY.read_bytes()
    assert code.count(built_with) == 1
    other = tmp_path / "other.so"
    other.write_bytes(code.replace(built_with, built_with[:-2] + b"9,"))
    message = run_python(f"""
torch.ops.load_library({str(other)!r})
assert not is_ours() and not hasattr(torch.ops.mantissa_kernels, "enable")
""")
    assert f"built for PyTorch {release}, but another version is installed; nothing is switched on" in message


def test_forked_workers_multiply():
    """The parent has used its threads, none of which exist in a worker."""
    run_python("""
from torch.utils.data import DataLoader, Dataset
torch.ops.load_library(LIBRARY)
a = torch.randn(200, 200).bfloat16()
class Products(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return (a @ a) * i, is_ours()
product = a @ a
for i, (batch, ours) in enumerate(DataLoader(Products(), num_workers=2, multiprocessing_context="fork", timeout=60)):
    assert torch.equal(batch[0], product * i) and ours.all()
""")


def test_threads_multiply_while_others_switch(kernels):
    """Every product is computed completely by one of the two kernels."""
    import threading

    a = torch.randn(40, 40).half()
    ours = a @ a
    kernels.disable()
    theirs = a @ a
    stop, wrong = threading.Event(), []

    def multiply():
        while not stop.is_set():
            product = a @ a
            if not (torch.equal(product, ours) or torch.equal(product, theirs)):
                wrong.append(product)

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2000):
        kernels.enable()
        kernels.disable()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
