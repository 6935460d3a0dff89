"""bitsandbytes on the CPU with these kernels: the same results as its own kernels, or better ones, and no change of code."""

import threading

import pytest
import torch
from conftest import own

bnb = pytest.importorskip("bitsandbytes")
F = bnb.functional
pytestmark = pytest.mark.usefixtures("replaced")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# A sum in another order; one rounding of the weight and one of the result in 16 bits.
BOUND = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def kernel_of(operator):
    """Says which kernel the dispatcher has for the CPU."""
    return torch._C._dispatch_dump(f"bitsandbytes::{operator}")


def test_the_switch_replaces_and_restores(replaced):
    for operator in ("quantize_4bit", "dequantize_4bit", "gemm_4bit", "gemv_4bit", "int8_linear_matmul",
                     "int8_scaled_mm", "int8_vectorwise_quant", "optimizer_update_8bit_blockwise"):
        assert "bitsandbytes_ops.cpp" in kernel_of(operator), operator
        assert "bitsandbytes_ops.cpp" not in own(replaced, lambda: kernel_of(operator)), operator
    assert replaced.bitsandbytes_kernels(True) is True


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("blocksize", [32, 64, 256])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_codes_and_restored_values(replaced, quant_type, blocksize, dtype):
    for size in [(64, 256), (33, 256), (1, 256)]:
        x = torch.randn(size).to(dtype)
        codes, state = F.quantize_4bit(x, blocksize=blocksize, quant_type=quant_type)
        their_codes, theirs = own(replaced, lambda: F.quantize_4bit(x, blocksize=blocksize, quant_type=quant_type))
        assert codes.shape == their_codes.shape and codes.dtype == their_codes.dtype
        assert torch.equal(state.absmax, theirs.absmax)
        # Codes next to a threshold, whose last bit differs, and FP4's second zero.
        restored = F.dequantize_4bit(codes, state)
        assert restored.dtype == dtype and restored.shape == x.shape
        assert (restored != F.dequantize_4bit(their_codes, theirs)).float().mean() < 2e-3
        assert torch.equal(restored, own(replaced, lambda: F.dequantize_4bit(codes, state)))


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16, torch.float32], ids=str)
def test_the_storage_of_codes(replaced, storage):
    x = torch.randn(64, 128)
    codes, state = F.quantize_4bit(x, quant_storage=storage)
    assert codes.dtype == storage
    plain, plain_state = F.quantize_4bit(x)
    assert torch.equal(F.dequantize_4bit(codes, state), F.dequantize_4bit(plain, plain_state))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_a_4bit_layer_and_its_gradients(replaced, quant_type, nested, dtype):
    layer = bnb.nn.Linear4bit(256, 96, quant_type=quant_type, compress_statistics=nested, compute_dtype=dtype).to("cpu")
    for shape in [(1, 256), (3, 256), (40, 256), (2, 5, 256)]:  # bitsandbytes has no backward pass for one dimension
        x = torch.randn(shape).to(dtype).requires_grad_()
        g = torch.randn(*shape[:-1], 96).to(dtype)

        def run():
            x.grad = layer.bias.grad = None
            y = layer(x)
            y.backward(g)
            return y.detach(), x.grad, layer.bias.grad

        for got, expected in zip(run(), own(replaced, run)):
            assert got.dtype == expected.dtype and got.shape == expected.shape
            torch.testing.assert_close(got, expected, rtol=BOUND[dtype], atol=BOUND[dtype] * expected.abs().max().item())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_the_layout_for_inference(replaced, quant_type, nested, dtype):
    """On a CPU with AVX512-BF16 bitsandbytes packs the weight of a layer in evaluation, and calls gemv_4bit for any rows."""
    w = torch.randn(96, 256)
    codes, state = F.quantize_4bit(w, quant_type=quant_type, compress_statistics=nested)
    dense = F.dequantize_4bit(codes, state)
    packed, state = F._convert_weight_packed_for_cpu(codes, state)
    for shape in [(1, 256), (3, 256), (2, 5, 256)]:
        x = torch.randn(shape).to(dtype)
        got, expected = F.gemv_4bit(x, packed, state=state), x.float() @ dense.t()
        assert got.dtype == dtype
        # The scales of this layout are bfloat16.
        torch.testing.assert_close(got.float(), expected, rtol=0, atol=1e-2 * expected.abs().max().item())


def test_a_layer_in_evaluation_is_the_same_after_each_switch(replaced):
    layer = bnb.nn.Linear4bit(256, 96, compute_dtype=torch.float32).to("cpu").eval()
    x = torch.randn(3, 256)
    with torch.no_grad():
        expected = x @ F.dequantize_4bit(layer.weight.data, layer.weight.quant_state).t() + layer.bias
        for on in (False, True, False):
            replaced.bitsandbytes_kernels(on)
            torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-2 * expected.abs().max().item())
    replaced.bitsandbytes_kernels(True)


def test_an_empty_batch(replaced):
    layer = bnb.nn.Linear4bit(64, 32, compute_dtype=torch.float32).to("cpu")
    assert layer(torch.empty(0, 64)).shape == (0, 32)


@pytest.mark.parametrize("threshold", [0.0, 6.0])
@pytest.mark.parametrize("rows", [1, 30])
def test_an_int8_layer(replaced, rows, threshold):
    layer = bnb.nn.Linear8bitLt(128, 96, has_fp16_weights=False, threshold=threshold).to("cpu").eval()
    x = torch.randn(rows, 128).half()
    x[:, 5] *= 10
    with torch.no_grad():
        got, expected = layer(x), own(replaced, lambda: layer(x))
    # bitsandbytes divides by 127^2 with six digits, and a code next to a tie may be the next one.
    torch.testing.assert_close(got, expected, rtol=4e-3, atol=4e-3 * expected.abs().max().item())


@pytest.mark.parametrize("threshold", [0.0, 3.0])
def test_int8_codes_and_sums(replaced, threshold):
    x, w = torch.randn(20, 96).half(), torch.randn(48, 96).half()
    codes, scales, columns = F.int8_vectorwise_quant(x, threshold=threshold)
    their_codes, their_scales, their_columns = own(replaced, lambda: F.int8_vectorwise_quant(x, threshold=threshold))
    assert torch.equal(scales, their_scales)
    assert (codes.int() - their_codes.int()).abs().max() <= 1
    assert (columns is None) == (their_columns is None) and (columns is None or torch.equal(columns, their_columns))
    weight = F.int8_vectorwise_quant(w)[0]
    for a in (codes, codes.view(4, 5, 96)):
        assert torch.equal(F.int8_linear_matmul(a, weight), a.int() @ weight.int().t())


def test_compiled_models_and_threads(replaced):
    layer = bnb.nn.Linear4bit(64, 32, compute_dtype=torch.float32).to("cpu")
    x = torch.randn(3, 64)
    expected = layer(x).detach()
    results = []
    threads = [threading.Thread(target=lambda: results.append(layer(x).detach())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(torch.equal(result, expected) for result in results)


def test_wrong_calls_raise(replaced):
    codes, state = F.quantize_4bit(torch.randn(32, 64))
    op = torch.ops.bitsandbytes
    with pytest.raises(ValueError, match="nf5"):
        op.dequantize_4bit(codes, state.absmax, 64, "nf5", [32, 64], torch.float32)
    with pytest.raises(ValueError, match="does not have 1024 bytes of codes"):
        op.dequantize_4bit(codes, state.absmax, 64, "nf4", [33, 64], torch.float32)
    with pytest.raises(ValueError, match="last dimension of x has to be 64"):
        op.gemm_4bit(torch.randn(2, 63), codes, [32, 64], state.absmax, 64, "nf4")
    with pytest.raises(ValueError, match="packed for the CPU"):
        op.gemv_4bit(torch.randn(1, 64), codes, [33, 64], torch.ones(1, 33).bfloat16(), state.code, 64)
    with pytest.raises(ValueError, match="inf or nan"):
        F.quantize_4bit(torch.full((4, 64), float("nan")))
    with pytest.raises(ValueError, match="scales do not fit"):
        op.int8_scaled_mm(torch.zeros(2, 8, dtype=torch.int8), torch.zeros(3, 8, dtype=torch.int8), torch.ones(3),
                          torch.ones(3))
