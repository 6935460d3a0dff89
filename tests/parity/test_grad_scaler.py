"""Compares our GradScaler with torch.amp.GradScaler("cpu"): random sequences of calls, in any order.

Compared bit for bit after every call: the kind of error, what the call returned, scale, growth tracker, the number of
steps taken, all parameters and gradients. C++ deliberately differs in these points, which the sequences respect:

- the floor of the scale: half of the sequences run without one (min_scale = 0) and must equal torch's down to zero;
  the others run with the default floor, and torch's scale is raised to it after each call (`floored`);
- new scales that are not finite, and states that are incomplete or impossible: C++ refuses them before anything
  changes, torch applies half of them. They are not generated; grad_scaler_state_test.cpp tests them;
- a fused optimizer whose gradients come after unscale_(): torch fails because it adds up no flags (`step`), and leaves
  attributes behind; here that is "no gradients", as for other optimizers;
- closures and extra arguments of step(), and pickling: C++ has none.
"""

import json
import random
import struct
import subprocess
import warnings

import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file, save_file

SEQUENCES = 3000
FLOOR = 2.0**-126

# For each kind of error: what torch raises and says, and what we raise and say.
KINDS = {
    "no scale": (AssertionError, "did not use scaler.scale(loss or outputs)", "Error",
                 "scaler.scale(loss) was not used"),
    "unscaled twice": (RuntimeError, "unscale_() has already been called on this optimizer since the last update()",
                       "Error", "unscale_() has already been called on this optimizer since the last update()"),
    "unscaled late": (RuntimeError, "unscale_() is being called after step()", "Error",
                      "unscale_() is being called after step()"),
    "stepped twice": (RuntimeError, "step() has already been called since the last update()", "Error",
                      "step() has already been called since the last update()"),
    "no gradients": (AssertionError, "No inf checks were recorded for this optimizer", "Error",
                     "No inf checks were recorded for this optimizer"),
    "no checks": (AssertionError, "No inf checks were recorded prior to update", "Error",
                  "No inf checks were recorded prior to update"),
    "fp16": (ValueError, "Attempting to unscale FP16 gradients", "ValueError", "Attempting to unscale FP16 gradients"),
    "empty state": (RuntimeError, "The source state dict is empty", "Error", "the source state dict is empty"),
    "wrong tensor": (AssertionError, "new_scale should be a float or a 1-element", "ValueError",
                     "new_scale should be a 1-element tensor"),
    "no graph": (RuntimeError, "does not require grad", "Error", "does not require grad"),
}


def bits(value):
    """Exact for every dtype; all NaNs are equal."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return [bits(v) for v in value.detach().to(torch.float64).flatten().tolist()]
    return struct.unpack("<q", struct.pack("<d", float("nan") if value != value else value))[0]


class Reference:
    """Runs one sequence on torch's side."""

    def __init__(self, job):
        self.job, self.saved, self.stepped = job, {}, 0
        self.parameters = [torch.tensor(p["values"], dtype=torch.float64).to(getattr(torch, p["dtype"])).requires_grad_()
                           for p in job["parameters"]]
        self.optimizers = []
        for o in job["optimizers"]:
            own = [self.parameters[i] for i in o["parameters"]]
            self.optimizers.append(torch.optim.SGD(own, lr=o["lr"], fused=o["kind"] == "fused"))
            self.optimizers[-1].register_step_post_hook(self.count)
        self.restart({})

    def count(self, *_):
        self.stepped += 1

    def floored(self):
        floor = self.job["options"]["min_scale"]
        if floor > 0 and self.scaler.is_enabled():
            self.scaler._init_scale = max(self.scaler._init_scale, floor)
            if self.scaler._scale is not None:
                self.scaler._scale.clamp_(min=floor)

    def run(self):
        results = []
        for call in self.job["calls"]:
            error = value = None
            try:
                value = getattr(self, call["op"])(call)
            except Exception as e:  # noqa: BLE001, the kind is what is compared
                error = e
            self.floored()
            results.append({"error": error, "value": value, "stepped": self.stepped,
                            "scale": bits(self.scaler.get_scale()), "tracker": self.scaler._get_growth_tracker(),
                            "parameters": [bits(p) for p in self.parameters],
                            "gradients": [bits(p.grad) for p in self.parameters]})
        return results

    def backward(self, call):
        loss = torch.zeros(())
        for part in call["gradients"]:
            factors = torch.tensor([float(v) for v in part["values"]])
            loss = loss + (self.parameters[part["parameter"]].float() * factors).sum()
        (self.scaler.scale(loss) if call["scaled"] else loss).backward()

    def zero_grad(self, call):
        self.optimizers[call["optimizer"]].zero_grad()

    def unscale_(self, call):
        self.scaler.unscale_(self.optimizers[call["optimizer"]])

    def step(self, call):
        optimizer = self.optimizers[call["optimizer"]]
        try:
            self.scaler.step(optimizer)
        except AttributeError as e:
            if str(e) != "'int' object has no attribute 'device'":
                raise
            del optimizer.grad_scale, optimizer.found_inf
            raise AssertionError("No inf checks were recorded for this optimizer") from e

    def update(self, _):
        self.scaler.update()

    def update_number(self, call):
        self.scaler.update(call["value"])

    def update_tensor(self, call):
        self.scaler.update(torch.tensor(call["value"]).reshape(call["shape"]))

    def scale(self, call):
        dtype = getattr(torch, call["dtype"])
        return bits(self.scaler.scale(torch.tensor([float(v) for v in call["value"]], dtype=torch.float64).to(dtype)))

    def scale_nothing(self, _):
        self.scaler.scale([])

    def save(self, _):
        self.saved = self.scaler.state_dict()
        return self.saved

    def load(self, _):
        self.scaler.load_state_dict(self.saved)

    def restart(self, _):
        options = {k: v for k, v in self.job["options"].items() if k != "min_scale"}
        self.scaler = torch.amp.GradScaler("cpu", **options)

    def set(self, call):
        self.scaler.set_growth_factor(call["growth_factor"])
        self.scaler.set_backoff_factor(call["backoff_factor"])
        self.scaler.set_growth_interval(call["growth_interval"])


def make_factors(rng):
    return {"growth_factor": rng.choice([2.0, 2.0, 1.5, 1024.0, 3.7]),
            "backoff_factor": rng.choice([0.5, 0.5, 0.25, 0.3, 2.0**-40, 0.0]),
            "growth_interval": rng.randint(1, 4)}


def make_calls(rng, parameters, optimizers):
    """Makes mostly iterations in torch's order, with calls left out, repeated and inserted."""
    usable = list(range(len(parameters)))

    def values(parameter, clean):
        size = len(parameters[parameter]["values"])
        out = [rng.choice([1.0, -0.5, 3.0, 1e-6, 0.1, 0.0]) for _ in range(size)]
        if not clean:
            out[rng.randrange(size)] = rng.choice(["inf", "-inf", "nan", 3e38])
        return out

    def backward():
        chosen = [p for p in usable if rng.random() < 0.8]
        clean = rng.random() < 0.75
        bad = rng.choice(chosen) if chosen else None
        return {"op": "backward", "scaled": rng.random() < 0.95,
                "gradients": [{"parameter": p, "values": values(p, clean or p != bad)} for p in chosen]}

    def stray():
        kind = rng.choice(["unscale_", "step", "update", "backward", "zero_grad", "update_number", "update_tensor",
                           "scale", "scale_nothing", "save", "load", "load", "restart", "set"])
        call = {"op": kind}
        if kind in ("unscale_", "step", "zero_grad"):
            call["optimizer"] = rng.randrange(len(optimizers))
        elif kind == "backward":
            call = backward()
        elif kind == "update_number":
            call["value"] = rng.choice([1.0, 4.0, 65536.0, 0.1, 2.0**127, 2.0**-126, 0.0])
        elif kind == "update_tensor":
            call.update(rng.choice([{"value": [8.0], "shape": []}, {"value": [1.0, 2.0], "shape": [2]}]))
        elif kind == "scale":
            call.update(value=[rng.choice([1.0, 3.0, 1e-3, "inf", "nan"])],
                        dtype=rng.choice(["float16", "bfloat16", "float32", "float64"]))
        elif kind == "set":
            call.update(make_factors(rng))
        return call

    calls = []
    for _ in range(rng.randint(1, 7)):
        iteration = [{"op": "zero_grad", "optimizer": o} for o in range(len(optimizers))]
        iteration += [backward() for _ in range(rng.choice([1, 1, 1, 2]))]
        iteration += [{"op": "unscale_", "optimizer": o} for o in range(len(optimizers)) if rng.random() < 0.4]
        iteration += [{"op": "step", "optimizer": o} for o in range(len(optimizers))]
        iteration.append({"op": "update"})
        calls += [call for call in iteration if rng.random() < 0.95]
        while rng.random() < 0.4:
            calls.insert(rng.randint(max(0, len(calls) - 6), len(calls)), stray())
    return calls


def make_sequence(seed):
    rng = random.Random(seed)
    # Half of the sequences use only float32, because fp16 gradients end most iterations with an error.
    dtypes = ["float32"] if rng.random() < 0.5 else ["float32", "float32", "float64", "bfloat16", "float16"]
    parameters = [{"values": [rng.choice([0.5, -1.0, 2.0, 0.25]) for _ in range(rng.randint(1, 3))],
                   "dtype": rng.choice(dtypes)} for _ in range(rng.randint(1, 4))]
    optimizers = [{"kind": rng.choice(["plain", "plain", "fused"]), "lr": rng.choice([0.5, 0.1]),
                   "parameters": sorted(rng.sample(range(len(parameters)), rng.randint(1, len(parameters))))}
                  for _ in range(rng.randint(1, 3))]
    options = {"init_scale": rng.choice([65536.0, 8.0, 3.0, 2.0**127, 2.0**-125, 1000.1]),
               "enabled": rng.random() < 0.97, "min_scale": rng.choice([0.0, FLOOR]), **make_factors(rng)}
    return {"options": options, "parameters": parameters, "optimizers": optimizers,
            "calls": make_calls(rng, parameters, optimizers)}


def kind_of(ours, error):
    """Returns the row of KINDS that the errors of both sides belong to, or "" if neither side has an error."""
    if error is None and not ours["error"]:
        return ""
    for kind, (their_type, their_text, our_type, our_text) in KINDS.items():
        if type(error) is their_type and their_text in str(error):
            assert (ours["error"], our_text in ours["text"]) == (our_type, True), (kind, ours["error"], ours["text"])
            return kind
    raise AssertionError(f"torch: {error!r}; ours: {ours['error']} {ours['text']}")


def run_ours(jobs):
    lines = "\n".join(json.dumps(job) for job in jobs)
    done = subprocess.run([BUILD / "scaler_runner"], input=lines, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_PE27_random_sequences_bit_for_bit(one_thread):
    jobs = [make_sequence(seed) for seed in range(SEQUENCES)]
    seen, floors = dict.fromkeys(["", *KINDS], 0), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed, (job, ours) in enumerate(zip(jobs, run_ours(jobs), strict=True)):
            theirs = Reference(job).run()
            assert len(ours) == len(theirs)
            for i, (call, a, b) in enumerate(zip(job["calls"], ours, theirs, strict=True)):
                where = f"sequence {seed}, call {i}: {call}"
                seen[kind_of(a, b["error"])] += 1
                for what in ("value", "stepped", "scale", "tracker", "parameters", "gradients"):
                    assert a[what] == b[what], f"{where}: {what}"
                floors += b["scale"] in (bits(0.0), bits(FLOOR))
    assert all(seen.values()), f"a kind of call that never happens proves nothing: {seen}"
    assert floors > 0
    print(f"{sum(seen.values())} calls; {seen}")


STATE = {"scale": 1234.5, "growth_factor": 3.7, "backoff_factor": 0.3, "growth_interval": 17, "_growth_tracker": 5}


@pytest.mark.parametrize("target", ["json", "safetensors"])
@pytest.mark.parametrize("source", ["json", "safetensors"])
def test_PE19_states_cross_both_ways(tmp_path, source, target):
    scaler = torch.amp.GradScaler("cpu")
    scaler.load_state_dict(STATE)
    scaler.scale(torch.zeros(()))
    saved = scaler.state_dict()
    assert saved == STATE
    from_file, to_file = tmp_path / f"python.{source}", tmp_path / f"ours.{target}"
    if source == "json":
        from_file.write_text(json.dumps(saved))
    else:
        save_file({key: torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
                   for key, value in saved.items()}, from_file)
    subprocess.run([BUILD / "scaler_runner", "convert", from_file, to_file], check=True)
    if target == "json":
        back = json.loads(to_file.read_text())
    else:
        back = {key: value.item() for key, value in load_file(to_file).items()}
    assert back.pop("_hysteresis_tracker") == 3, "our own key, which torch ignores"
    assert back == STATE
    assert {key: type(value) for key, value in back.items()} == {key: type(value) for key, value in STATE.items()}
    again = torch.amp.GradScaler("cpu")
    again.load_state_dict({**back, "_hysteresis_tracker": 3})
    again.scale(torch.zeros(()))
    assert again.state_dict() == STATE
