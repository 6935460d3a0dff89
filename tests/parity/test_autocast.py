"""Compares every operation under mantissa::Autocast (C++) with torch.autocast (Python), bit for bit.

The operations are those of torch's own tests of autocast on the CPU, and the rest of the CPU's list.
"""

import json
import subprocess
import sys
import types

import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file, save_file


def torchs_lists():
    """Imports torch's lists without the test class beside them, which needs packages of torch's developers."""
    name = "torch.testing._internal.common_utils"
    sys.modules.setdefault(name, types.SimpleNamespace(TEST_WITH_ROCM=False, TestCase=object))
    from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists

    return AutocastCPUTestLists("cpu")


DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

# Operators of Python's Tensor, which are in torch's lists but not in C++. Each one calls the operation of the
# same name without underscores, which is in torch_expect_builtin_promote.
PYTHON_ONLY = {f"__{name}__" for name in ("eq", "ge", "gt", "le", "lt", "ne", "add", "div", "mul")}

# Operations of the CPU's list that are not called here.
NOT_CALLED = {
    "index_copy.dimname": "names cannot be passed through a boxed call",
    "prod.dim_Dimname": "as above",
    "mkldnn_rnn_layer": "runs on some CPUs only; autocast_test.cpp, AC21",
    "linalg_lstsq": "gives the last bit by where its arguments lie in memory, also within one process",
}


def listed_ops(dtype):
    """Yields (aten name, arguments, keywords, expected dtype) for each row of torch's lists."""
    torch.manual_seed(0)
    lists = torchs_lists()
    for rows, expected in ((lists.torch_16 + lists.nn_16, dtype), (lists.torch_fp32 + lists.nn_fp32, torch.float32)):
        for op, arguments, *keywords in rows:
            yield op, arguments, *(keywords or [{}]), expected
    column = 0 if dtype == torch.bfloat16 else 1
    for op, *arguments in lists.torch_need_autocast_promote:
        yield op, arguments[column], {}, torch.float32
    for op, *arguments, expected in lists.torch_expect_builtin_promote:
        yield op, arguments[column], {}, expected
    assert {op for op, *_ in lists.methods_expect_builtin_promote} == PYTHON_ONLY


def overload_of(name, arguments, keywords):
    """Returns the operation of torch.ops. torch.<name> may have other defaults in Python, such as
    torch.cosine_embedding_loss, which does not reduce."""
    op, _, overload = name.partition(".")
    overload = overload or torch._C._jit_resolve_packet(f"aten::{op}", *arguments, **keywords)
    return getattr(getattr(torch.ops.aten, op), overload)


def other_ops(dtype):
    """Yields the same for operations that are registered for the CPU but missing from torch's lists."""
    generator = torch.Generator().manual_seed(1)

    def rand(*shape):
        return torch.rand(shape, generator=generator).to(dtype)

    matrix, vector, line, image, volume = rand(4, 4), rand(4), rand(1, 2, 8), rand(1, 2, 6, 6), rand(1, 2, 4, 4, 4)
    positive = (torch.eye(4) * 4 + 1).to(dtype)
    wide = {shape: torch.rand(shape, generator=generator) for shape in [(1, 2, 8), (3, 2, 3), (1, 2, 6, 6), (3, 2, 3, 3),
                                                                         (1, 2, 4, 4, 4), (3, 2, 3, 3, 3), (1, 2, 4, 4), (4,)]}
    lu, pivots = torch.linalg.lu_factor(positive.float())
    pooled2, indices2 = torch.nn.functional.max_pool2d(image.float(), 2, return_indices=True)
    pooled3, indices3 = torch.nn.functional.max_pool3d(volume.float(), 2, return_indices=True)
    classes, signs = torch.arange(4), torch.ones(4)
    sequences, grid = torch.tensor([[1, 2], [2, 1]]), rand(1, 3, 3, 2)
    attention = wide[1, 2, 4, 4]
    low = [
        ("_convolution.deprecated", wide[1, 2, 6, 6], wide[3, 2, 3, 3], None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
         False, False, False),
        ("conv1d.padding", wide[1, 2, 8], wide[3, 2, 3]), ("conv2d.padding", wide[1, 2, 6, 6], wide[3, 2, 3, 3]),
        ("conv3d.padding", wide[1, 2, 4, 4, 4], wide[3, 2, 3, 3, 3]), ("linalg_vecdot", wide[4,], wide[4,]),
        ("scaled_dot_product_attention", attention, attention, attention),
    ]
    square = ("fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn "
              "fft_rfft fft_rfft2 fft_rfftn _lu_with_info cholesky cholesky_inverse geqrf inverse linalg_cholesky "
              "linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_inv "
              "linalg_inv_ex linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor linalg_qr linalg_svd "
              "linalg_svdvals pinverse prod qr svd trace").split()
    float32 = [(name, positive) for name in square] + [
        ("_grid_sampler_2d_cpu_fallback", image, grid, 0, 0, False), ("adaptive_avg_pool3d", volume, [2, 2, 2]),
        ("adaptive_max_pool3d", volume, [2, 2, 2]), ("max_pool3d", volume, [2, 2, 2]), ("cdist", matrix, positive),
        ("cholesky_solve", matrix, positive), ("cross_entropy_loss", matrix, classes),
        ("ctc_loss.IntList", rand(5, 2, 3), sequences, [5, 5], [2, 2]),
        ("ctc_loss.Tensor", rand(5, 2, 3), sequences, torch.tensor([5, 5]), torch.tensor([2, 2])),
        ("fake_quantize_per_tensor_affine", matrix, 0.1, 0, -8, 7),
        ("fractional_max_pool2d", image, [2, 2], [3, 3], rand(1, 2, 2)),
        ("fractional_max_pool3d", volume, [2, 2, 2], [2, 2, 2], rand(1, 2, 3)),
        ("grid_sampler", image, grid, 0, 0, False), ("grid_sampler_2d", image, grid, 0, 0, False),
        ("grid_sampler_3d", volume, rand(1, 2, 2, 2, 3), 0, 0, False), ("kl_div", matrix, positive),
        ("linalg_cond.p_str", positive, "fro"), ("linalg_householder_product", matrix, vector),
        ("linalg_matrix_rank", positive, 0.1), ("linalg_matrix_rank.tol_tensor", positive, rand(1)),
        ("linalg_solve", positive, matrix), ("linalg_tensorinv", positive.view(2, 2, 2, 2)),
        ("linalg_tensorsolve", positive.view(2, 2, 4), rand(2, 2)), ("lu_solve", matrix, lu.to(dtype), pivots),
        ("max_unpool2d", pooled2.to(dtype), indices2, [6, 6]),
        ("max_unpool3d", pooled3.to(dtype), indices3, [4, 4, 4], [2, 2, 2], [0, 0, 0]),
        ("multilabel_margin_loss_forward", matrix, torch.zeros(4, 4, dtype=torch.long), 1),
        ("nanquantile", matrix, rand(1)), ("nanquantile.scalar", matrix, 0.3), ("orgqr", matrix, vector),
        ("ormqr", matrix, vector, positive), ("polar", vector, vector), ("prod.dim_int", matrix, 0),
        ("quantile", matrix, rand(1)), ("quantile.scalar", matrix, 0.3), ("reflection_pad2d", image, [1, 1, 1, 1]),
        ("replication_pad1d", matrix, [1, 1]), ("replication_pad2d", image, [1, 1, 1, 1]),
        ("replication_pad3d", volume, [1, 1, 1, 1, 1, 1]),
        ("stft", rand(16), 8, None, None, vector.new_ones(8), False, None, True),
        ("stft.center", rand(16), 8, None, None, vector.new_ones(8), True, "reflect", False, None, True),
        ("triangular_solve", matrix, positive), ("view_as_complex", rand(4, 2)),
    ]
    widest = [("index_copy", signs, 0, torch.tensor([1]), rand(1))]
    for rows, expected in ((low, dtype), (float32, torch.float32), (widest, torch.float32)):
        for name, *arguments in rows:
            yield name if "." in name else f"{name}.default", arguments, {}, expected


def as_json(value, tensors):
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value):
        return {"tensors": [as_json(item, tensors)["tensor"] for item in value]}
    return value


def results_of(output):
    """Returns the tensors that a call returned, complex ones as pairs of numbers."""
    flat = [output] if isinstance(output, torch.Tensor) else [item for item in output if isinstance(item, torch.Tensor)]
    return [torch.view_as_real(item.resolve_conj()) if item.is_complex() else item for item in flat]


@pytest.fixture
def run_autocast(tmp_path):
    def run(tensors, **job):
        job |= {"tensors": str(tmp_path / "in.safetensors"), "output": str(tmp_path / "out.safetensors")}
        save_file(tensors, job["tensors"])
        (tmp_path / "job.json").write_text(json.dumps(job))
        subprocess.run([BUILD / "autocast_runner", tmp_path / "job.json"], check=True)
        return load_file(job["output"])

    return run


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore")  # of deprecated operations that are in the list
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ops", [listed_ops, other_ops])
def test_pe20_pe21_every_op_bit_for_bit(run_autocast, ops, dtype):
    tensors, calls, wanted, names = {}, [], [], []
    for name, arguments, keywords, expected in ops(DTYPES[dtype]):
        function = overload_of(name, arguments, keywords)
        calls.append({"op": function._schema.name, "overload": function._schema.overload_name,
                      "args": [as_json(argument, tensors) for argument in arguments],
                      "kwargs": {key: as_json(value, tensors) for key, value in keywords.items()}})
        with torch.autocast("cpu", dtype=DTYPES[dtype]):
            wanted.append(results_of(function(*arguments, **keywords)))
        names.append(name)
        real = [result.dtype for result in wanted[-1] if result.is_floating_point() or expected == torch.bool]
        assert all(got == expected for got in real), f"{name}: {real} instead of {expected}"
    results = run_autocast(tensors, kind="calls", dtype=dtype, calls=calls)
    assert len(results) == sum(len(result) for result in wanted)
    for i, name in enumerate(names):
        for k, value in enumerate(wanted[i]):
            ours = results[f"{i}.{k}"]
            assert ours.dtype == value.dtype, f"{name}: {ours.dtype} instead of {value.dtype}"
            assert ours.shape == value.shape, f"{name}: {ours.shape} instead of {value.shape}"
            assert torch.allclose(ours, value, rtol=0, atol=0, equal_nan=True), f"{name}, result {k} differs"


def registrations(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"kind": "registrations"}))
    return json.loads(subprocess.run([BUILD / "autocast_runner", tmp_path / "job.json"], check=True, capture_output=True).stdout)


def registered_in_torch(key):
    """The operators of torch itself. torchvision, which other tests import, adds its own to the process."""
    return {name for name in torch._C._dispatch_get_registrations_for_dispatch_key(key) if name.startswith("aten::")}


def test_pe22_both_sides_have_the_same_lists(tmp_path):
    ours = registrations(tmp_path)
    # Mantissa registers a kernel for a whole LSTM, because oneDNN's cannot train in fp16:
    # kernels/aten/recurrent_internal.h.
    for key, only_ours, only_with_cuda in (("AutocastCPU", {"aten::lstm.input"}, set()),
                                           ("AutocastCUDA", set(), {"aten::_cudnn_rnn"})):
        theirs = registered_in_torch(key)
        assert set(ours[key]) | only_with_cuda == theirs | only_ours | only_with_cuda


def test_pe22_every_op_of_the_cpus_list_is_called_or_named():
    called = set()
    for ops in (listed_ops, other_ops):
        for name, arguments, keywords, _ in ops(torch.bfloat16):
            schema = overload_of(name, arguments, keywords)._schema
            called.add(".".join(filter(None, [schema.name.removeprefix("aten::"), schema.overload_name])))
    registered = {name.removeprefix("aten::") for name in registered_in_torch("AutocastCPU")}
    assert registered - called == set(NOT_CALLED)


class Follows(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient.mm(b.t()), a.t().mm(gradient)


class Float32(Follows):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.mm(b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backward_inside", [False, True])
@pytest.mark.parametrize("function", [Follows, Float32])
def test_ac34_ac37_custom_functions_bit_for_bit(run_autocast, function, backward_inside, dtype):
    generator = torch.Generator().manual_seed(2)
    tensors = {"a": torch.randn(5, 7, generator=generator).to(DTYPES[dtype]), "b": torch.randn(7, 3, generator=generator)}
    ours = run_autocast(tensors, kind="custom_function", dtype=dtype, cast_inputs=function is Float32,
                        backward_inside=backward_inside)
    a, b = (tensors[name].clone().requires_grad_() for name in "ab")
    with torch.autocast("cpu", dtype=DTYPES[dtype]):
        product = function.apply(a, b)
        loss = product.float().pow(2).sum()
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    for name, value in {"product": product.detach(), "a.grad": a.grad, "b.grad": b.grad}.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), name
    assert product.dtype == (torch.float32 if function is Float32 else DTYPES[dtype])
