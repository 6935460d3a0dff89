"""The modes nf4, nf4-dq, fp4, fp4-dq and int8 against Lightning's BitsandbytesPrecision, live on the CPU."""

import copy
import json

import bitsandbytes.functional as F
import pytest
import torch
from lightning.fabric.plugins.precision.bitsandbytes import BitsandbytesPrecision
from test_quant import away_from_thresholds, one_zero

MODES = ["nf4", "nf4-dq", "fp4", "fp4-dq", "int8"]


@pytest.fixture
def run(runner):
    return runner("quantized_mode_runner")


class Case:
    """Two layers whose weights float16 holds: on a CPU, Lightning does not round them to it first."""

    def __init__(self, mode):
        torch.manual_seed(7)
        self.float = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
        for layer in (self.float[0], self.float[2]):
            layer.weight.data = layer.weight.data.half().float()
            if mode != "int8":
                layer.weight.data = away_from_thresholds(layer.weight.data, mode[:3], 64)
        self.plugin = BitsandbytesPrecision(mode, dtype=torch.float16 if mode == "int8" else torch.bfloat16)
        self.net = self.plugin.convert_module(copy.deepcopy(self.float)).to("cpu").eval()
        self.inputs = {"x": torch.randn(9, 128), "gy": torch.randn(9, 64)}

    def state(self):
        return {name: tensor.detach() for name, tensor in self.net.state_dict().items()}

    def float_state(self):
        return {name: tensor.detach() for name, tensor in self.float.state_dict().items()}


def restored(state, layer):
    parts = {name[len(layer) + 8:]: tensor for name, tensor in state.items() if name.startswith(f"{layer}.weight.")}
    quantized = F.QuantState.from_dict(parts, device=torch.device("cpu"))
    return F.dequantize_4bit(state[f"{layer}.weight"], quantized).float()


@pytest.mark.parametrize("mode", MODES)
def test_Q53_Q57_Q60_a_float_state_becomes_lightnings(run, mode):
    case = Case(mode)
    ours, theirs = run(mode, {**case.inputs, **case.float_state()}), case.state()
    assert {name for name in ours if name != "y" and not name.startswith("grad.")} == set(theirs)
    for name, tensor in theirs.items():
        if "bitsandbytes__" in name:
            got, want = (json.loads(bytes(each.tolist())) for each in (ours[name], tensor))
            assert got.pop("dtype") == "float16" and want.pop("dtype") == "float32"
            assert got.pop("nested_offset", 0) == pytest.approx(want.pop("nested_offset", 0), rel=1e-6)
            assert got == want
        elif name.endswith(".weight") and mode == "int8":
            # A product within a rounding of a tie: 127 / scale is a reciprocal and a product in libtorch.
            difference = (ours[name].int() - tensor.int()).abs()
            assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3
        elif mode.endswith("-dq") and "absmax" in name:
            assert ours[name].dtype == tensor.dtype and ours[name].shape == tensor.shape
        else:
            known = one_zero if name.endswith(".weight") and mode.startswith("fp4") else lambda each: each
            assert torch.equal(known(ours[name]), known(tensor)), name
    if mode.endswith("-dq"):
        for layer in ("0", "2"):
            torch.testing.assert_close(restored(ours, layer), restored(theirs, layer), rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_Q58_lightnings_state_is_loaded_bit_for_bit(run, mode):
    case = Case(mode)
    theirs = case.state()
    ours = run(mode, {**case.inputs, **theirs})
    for name, tensor in theirs.items():
        if "bitsandbytes__" in name:
            assert json.loads(bytes(ours[name].tolist())) == json.loads(bytes(tensor.tolist()))
        else:
            assert torch.equal(ours[name], tensor), name


@pytest.mark.parametrize("mode", MODES)
def test_Q59_outputs_are_lightnings(run, mode):
    case = Case(mode)
    ours = run(mode, {**case.inputs, **case.state()})
    with case.plugin.forward_context():
        y = case.net(case.plugin.convert_input(case.inputs["x"]))
    y = case.plugin.convert_output(y)
    assert ours["y"].dtype == y.dtype == torch.float32
    # Both round each layer's result to 16 bits, and add in another order.
    torch.testing.assert_close(ours["y"], y.detach(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("mode", MODES)
def test_Q21_gradients_are_those_of_the_restored_weights(run, mode):
    """On a CPU, the peer computes no gradient of the biases of its 4-bit layers."""
    case = Case(mode)
    state = case.state()
    ours = run(mode, {**case.inputs, **state})
    plain = copy.deepcopy(case.float)
    for layer in ("0", "2"):
        if mode == "int8":
            weight = state[f"{layer}.weight"].float() * state[f"{layer}.SCB"][:, None] / 127
        else:
            weight = restored(state, layer)
        plain[int(layer)].weight.data = weight
    with torch.autocast("cpu", dtype=case.plugin.dtype):
        y = plain(case.inputs["x"])
    (y.float() * case.inputs["gy"]).sum().backward()
    assert not any(name.endswith("weight") for name in ours if name.startswith("grad."))
    # A unit of the hidden layer near zero may be on in one of them only: its row of gradients is left out.
    torch.testing.assert_close(ours["grad.2.bias"], plain[2].bias.grad, rtol=1e-2, atol=1e-2)
    close = torch.isclose(ours["grad.0.bias"], plain[0].bias.grad, rtol=3e-2, atol=3e-2)
    assert close.float().mean() > 0.95


def test_Q58_a_state_of_another_mode_is_refused(run):
    case = Case("fp4")
    with pytest.raises(ValueError, match="is saved as fp4, blocks of 64.*choose the mode fp4"):
        run("nf4", {**case.inputs, **case.state()})
