"""4-bit and 8-bit weights against bitsandbytes, live: bytes, restored values, products, and states in both directions."""

import json

import bitsandbytes as bnb
import bitsandbytes.functional as F
import pytest
import torch

SIZES = [(3, 5), (5, 30), (64, 64), (33, 200), (96, 512)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def run(runner):
    return runner("quant_runner")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def one_zero(packed):
    """Makes FP4's second zero, code 8, the first: bitsandbytes' CPU and GPU kernels choose differently."""
    high, low = packed & 0xF0, packed & 0x0F
    return torch.where(high == 0x80, 0, high) + torch.where(low == 8, 0, low)


def away_from_thresholds(x, format, blocksize):
    """Replaces the values that lie within a rounding of a threshold, where bitsandbytes' CPU and GPU kernels differ."""
    table = F.get_4bit_type(format, device="cpu").sort().values
    middles = (table[1:] + table[:-1]) / 2
    flat = x.flatten().clone()
    for begin in range(0, flat.numel(), blocksize):
        block = flat[begin:begin + blocksize].float()
        near = ((block / block.abs().max())[:, None] - middles).abs().min(dim=1).values < 1e-5
        flat[begin:begin + blocksize][near] = 0
    return flat.view(x.shape)


def restored_by_hand(packed, state):
    nibbles = torch.stack([packed.flatten() >> 4, packed.flatten() & 15], -1).flatten()[:state.shape.numel()]
    scales = state.absmax.repeat_interleave(state.blocksize)[:state.shape.numel()]
    return (state.code[nibbles.int()] * scales).view(state.shape).to(state.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("blocksize", [32, 64, 128, 1024])
@pytest.mark.parametrize("format", ["nf4", "fp4"])
def test_Q02_Q03_Q04_Q05_Q12_bytes_and_restored_values(run, format, blocksize, dtype):
    for size in SIZES:
        x = away_from_thresholds(torch.randn(size).to(dtype), format, blocksize)
        packed, state = F.quantize_4bit(x, blocksize=blocksize, quant_type=format)
        ours = run("quantize4", {"x": x}, format, blocksize, 0)
        known = one_zero if format == "fp4" else lambda bytes: bytes
        assert torch.equal(known(ours["layer.weight"]), known(packed)), size
        assert torch.equal(ours["layer.weight.absmax"], state.absmax), size
        assert torch.equal(ours["restored"], restored_by_hand(packed, state)), size
        # Where a block is longer than a row, bitsandbytes 0.50.2 takes another block's scale on the CPU.
        if blocksize <= size[1]:
            assert torch.equal(ours["restored"], F.dequantize_4bit(packed, state)), size


@pytest.mark.parametrize("format", ["nf4", "fp4"])
def test_Q13_Q14_double_quantization(run, format):
    x = away_from_thresholds(torch.randn(96, 512), format, 64)
    packed, state = F.quantize_4bit(x, blocksize=64, quant_type=format, compress_statistics=True)
    ours = run("quantize4", {"x": x}, format, 64, 1)
    theirs = state.as_dict(packed=True)
    # The peer looks its codes up in a table with steps of 3e-5, so that a code near a midpoint may be the next one.
    difference = (ours["layer.weight.absmax"].int() - theirs["absmax"].int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 0.02
    torch.testing.assert_close(ours["layer.weight.nested_absmax"], theirs["nested_absmax"], rtol=1e-6, atol=0)
    assert torch.equal(ours["layer.weight.nested_quant_map"], theirs["nested_quant_map"])
    read = run("read4", {"layer.weight": packed, **{f"layer.weight.{k}": v for k, v in theirs.items()}})
    torch.testing.assert_close(read["restored"], F.dequantize_4bit(packed, state), rtol=2**-22, atol=0)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("format", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_Q16_Q18_states_travel_both_ways(run, format, nested, dtype):
    layer = bnb.nn.Linear4bit(64, 96, bias=False, quant_type=format, compress_statistics=nested)
    layer.weight = bnb.nn.Params4bit(torch.randn(96, 64).to(dtype), requires_grad=False, quant_type=format,
                                     compress_statistics=nested)
    layer = layer.to("cpu")
    theirs = {f"layer.{name}": tensor for name, tensor in layer.state_dict().items()}
    ours = run("read4", theirs)
    assert torch.equal(ours.pop("restored"), F.dequantize_4bit(layer.weight.data, layer.weight.quant_state))
    packed = f"layer.weight.quant_state.bitsandbytes__{format}"
    as_object = lambda tensors: json.loads(bytes(tensors.pop(packed).tolist()))
    parts = {name: tensor for name, tensor in ours.items() if name != "layer.weight"}
    assert as_object(ours) == as_object(theirs)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name

    state = {name.removeprefix("layer.weight."): tensor for name, tensor in parts.items()}
    again = bnb.nn.Params4bit.from_prequantized(ours["layer.weight"], state, device="cpu")
    assert torch.equal(F.dequantize_4bit(again.data, again.quant_state),
                       F.dequantize_4bit(layer.weight.data, layer.weight.quant_state))


@pytest.mark.parametrize("nested", [0, 1])
def test_Q18_bitsandbytes_reads_what_we_quantize(run, nested):
    ours = run("quantize4", {"x": torch.randn(33, 64, dtype=torch.bfloat16)}, "nf4", 64, nested)
    state = {name.removeprefix("layer.weight."): tensor for name, tensor in ours.items() if name.startswith("layer.weight.")}
    weight = bnb.nn.Params4bit.from_prequantized(ours["layer.weight"], state, device="cpu")
    assert weight.quant_state.shape == (33, 64) and weight.quant_state.dtype == torch.bfloat16
    assert torch.equal(F.dequantize_4bit(weight.data, weight.quant_state), ours["restored"])


@pytest.mark.parametrize("change", ["two states", "suffix", "spacing"])
def test_Q19_both_refuse_the_same_states(run, change):
    ours = run("quantize4", {"x": torch.randn(8, 64)}, "nf4", 64, 0)
    ours.pop("restored")
    key = "layer.weight.quant_state.bitsandbytes__nf4"
    if change == "two states":
        ours["layer.weight.quant_state.bitsandbytes__fp4"] = ours[key].clone()
    elif change == "suffix":
        ours["layer.weight.quant_state.bitsandbytes__nf8"] = ours.pop(key)
    else:
        text = json.dumps(json.loads(bytes(ours[key].tolist())), sort_keys=True, indent=3, separators=(" ,", "  : "))
        ours[key] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    state = {name.removeprefix("layer.weight."): tensor for name, tensor in ours.items() if name != "layer.weight"}
    if change == "spacing":
        theirs = bnb.nn.Params4bit.from_prequantized(ours["layer.weight"], state, device="cpu")
        assert torch.equal(run("read4", ours)["restored"], F.dequantize_4bit(theirs.data, theirs.quant_state))
        return
    with pytest.raises(ValueError):
        F.QuantState.from_dict(state, device=torch.device("cpu"))
    with pytest.raises(ValueError):
        run("read4", ours)


@pytest.mark.parametrize("format", ["nf4", "fp4"])
@pytest.mark.parametrize("rows", [1, 4, 40])
def test_Q20_Q21_a_layer_and_its_gradients(run, rows, format):
    w = away_from_thresholds(torch.randn(48, 128), format, 64)
    x, bias, gy = torch.randn(rows, 128), torch.randn(48), torch.randn(rows, 48)
    layer = bnb.nn.Linear4bit(128, 48, quant_type=format, compress_statistics=False, compute_dtype=torch.float32)
    layer.weight = bnb.nn.Params4bit(w, requires_grad=False, quant_type=format, compress_statistics=False)
    layer.bias = torch.nn.Parameter(bias.clone())
    layer = layer.to("cpu")
    theirs = x.clone().requires_grad_()
    y = layer(theirs)
    y.backward(gy)
    ours = run("linear4", {"x": x, "w": w, "bias": bias, "gy": gy}, format, 64, 0)
    torch.testing.assert_close(ours["y"], y.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours["gx"], theirs.grad, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours["gbias"], layer.bias.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threshold", [0.0, 3.0])
def test_Q27_Q28_Q30_int8_codes_and_sums(run, threshold):
    w, x = torch.randn(48, 96).half(), torch.randn(20, 96).half()
    x[:, 5] *= 10
    ours = run("int8", {"x": x, "w": w, "bias": torch.zeros(48).half()}, threshold)
    codes, scales, _ = F.int8_vectorwise_quant(w)
    # A product within a rounding of a tie: 127 / scale is a reciprocal and a product in libtorch.
    difference = (ours["layer.weight"].int() - codes.int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3
    assert torch.equal(ours["layer.SCB"], scales.float())
    codes, scales, columns = F.int8_vectorwise_quant(x, threshold=threshold)
    difference = (ours["CA"].int() - codes.int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3
    assert torch.equal(ours["SCA"], scales.float())
    if threshold:
        assert torch.equal(ours["columns"], columns)
    assert torch.equal(ours["sums"], F.int8_linear_matmul(ours["CA"], ours["layer.weight"]))


@pytest.mark.parametrize("threshold", [0.0, 6.0])
def test_Q30_Q32_an_int8_layer_and_its_state(run, threshold):
    w, x, bias = torch.randn(48, 96), torch.randn(20, 96).half(), torch.randn(48).half()
    x[:, 5] *= 10
    layer = bnb.nn.Linear8bitLt(96, 48, has_fp16_weights=False, threshold=threshold)
    layer.load_state_dict({"weight": w, "bias": bias})
    layer = layer.to("cpu").eval()
    ours = run("int8", {"x": x, "w": w, "bias": bias}, threshold)
    y = layer(x).detach()
    torch.testing.assert_close(ours["y"].float(), y.float(), rtol=2e-3, atol=5e-3 * y.abs().max().item())
    theirs = {f"layer.{name}": tensor for name, tensor in layer.state_dict().items() if name != "bias"}
    again = run("read8", theirs)
    assert again.keys() == theirs.keys()
    for name, tensor in again.items():
        assert tensor.dtype == theirs[name].dtype and torch.equal(tensor, theirs[name]), name
