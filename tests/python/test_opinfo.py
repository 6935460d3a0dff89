"""PyTorch's own samples for its operations (OpInfo), with the kernels on and off.

Each operation is called as it is, on tensors with gaps, into out=, in place, and differentiated twice. Strides, dtypes
and errors must be PyTorch's, and so must the bits of everything that the kernels do not compute, especially float32 and
float64. A 16-bit result may have other bits: it is then compared with float64.
- An operation that is one product (ONE_ROUNDING) must keep the bound of docs/cpu-kernels-numerics.md.
- Others, and all gradients, round several times, and their errors combine by chance. No element may have a larger error
  than one rounding, or than WORST times the worst of PyTorch's own. Over all samples, the root of the mean square may
  not exceed MEAN times PyTorch's, or that of one rounding.
An operation with more samples than SAMPLES allows is tested with that many, taken evenly from the list.

MANTISSA_KERNELS chooses the tier, `-m products` the operations that reach the kernels.
"""

import collections
import itertools

import pytest
import torch
from conftest import HALF_PLACE, allowed_error, stock, sum_error
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = {True: 16, False: 3}  # of PRODUCTS, of OTHERS
# Where errors cancel, the worst error may be any multiple of another kernel's that rounds as often. The mean
# over some samples may not.
WORST, MEAN = 8, 1.5

ONE_ROUNDING = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot", "matmul", "__rmatmul__", "inner",
                "tensordot"}
# Operations that reach the kernels, or will.
PRODUCTS = ONE_ROUNDING | {
    "addbmm", "addr", "outer", "einsum", "kron", "corrcoef", "cov", "linalg.multi_dot", "linalg.vecdot",
    "nn.functional.linear", "nn.functional.bilinear", "nn.functional.conv1d", "nn.functional.conv2d",
    "nn.functional.conv3d", "nn.functional.conv_transpose1d", "nn.functional.conv_transpose2d",
    "nn.functional.conv_transpose3d", "nn.functional.gelu", "nn.functional.scaled_dot_product_attention",
    "nn.functional.multi_head_attention_forward"}
# Gradients of a softmax that is nearly 0 or 1, as in these samples, cancel so much that one sample dominates
# the mean. test_attention.py takes many samples.
HEAVY_TAILED = {"nn.functional.scaled_dot_product_attention", "nn.functional.multi_head_attention_forward"}
# Other operations of a training step.
OTHERS = {
    "add", "addcdiv", "addcmul", "bernoulli", "cat", "clamp", "div", "exp", "gather", "index_select",
    "linalg.vector_norm", "log", "log_softmax", "logsumexp", "masked_fill", "mean", "mul", "native_batch_norm",
    "native_layer_norm", "pow", "reshape", "rsqrt", "scatter_add", "sigmoid", "softmax", "sqrt", "stack", "sub", "sum",
    "tanh", "transpose", "tril", "var_mean", "where", "nn.functional.adaptive_avg_pool2d", "nn.functional.avg_pool2d",
    "nn.functional.batch_norm", "nn.functional.binary_cross_entropy_with_logits", "nn.functional.cross_entropy",
    "nn.functional.dropout", "nn.functional.embedding", "nn.functional.embedding_bag", "nn.functional.glu",
    "nn.functional.group_norm", "nn.functional.huber_loss", "nn.functional.instance_norm",
    "nn.functional.layer_norm", "nn.functional.leaky_relu", "nn.functional.mse_loss", "nn.functional.nll_loss",
    "nn.functional.pad", "nn.functional.relu", "nn.functional.rms_norm", "nn.functional.silu", "nn.functional.softplus",
    "nn.functional.unfold"}

OPS = [op for op in op_db if op.name in PRODUCTS | OTHERS]
assert {op.name for op in OPS} == PRODUCTS | OTHERS


def name_of(op):
    return op.name + (f"-{op.variant_test_name}" if op.variant_test_name else "")


def parametrize(dtypes, ops=OPS):
    cases = [pytest.param(op, dtype, id=f"{name_of(op)}-{str(dtype)[6:]}",
                          marks=[pytest.mark.products] if op.name in PRODUCTS else [])
             for op, dtype in itertools.product(ops, dtypes) if dtype in op.dtypes]
    return pytest.mark.parametrize(("op", "dtype"), cases)


def samples(op, dtype):
    torch.manual_seed(0)
    differentiable = op.supports_autograd and dtype in op.backward_dtypes and not dtype == torch.int64
    every = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
    chosen = every[::max(1, -(-len(every) // SAMPLES[op.name in PRODUCTS]))]
    return chosen + [sample.noncontiguous() for sample in chosen]


def change(function, sample):
    """Returns (input, args, kwargs) with `function` applied to every floating-point tensor; leaves stay leaves."""
    def each(x):
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return function(x.detach()).requires_grad_(x.requires_grad)

    return tree_map(each, (sample.input, sample.args, sample.kwargs))


def tensors(result):
    return [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]


def direction(tensor, seed):
    """Returns a starting gradient that is the same in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator).to(torch.bfloat16).to(tensor.dtype)


def call(op, sample, arguments):
    """Returns {name: tensors or the error}: results, and their first and second derivatives."""
    input, args, kwargs = arguments
    found = {}
    try:
        torch.manual_seed(1)
        results = tensors(sample.output_process_fn_grad(op(input, *args, **kwargs)))
        found["result"] = results
        leaves = [x for x in tensors(arguments) if x.requires_grad and x.is_leaf]
        ends = [x for x in results if x.requires_grad and x.is_floating_point()]
        if not leaves or not ends:
            return found
        starts = [direction(x, 2).requires_grad_(op.supports_gradgrad) for x in ends]
        first = torch.autograd.grad(ends, leaves, starts, create_graph=op.supports_gradgrad, allow_unused=True)
        found["gradient"] = [x for x in first if x is not None]
        ends = [x for x in found["gradient"] if x.requires_grad]
        if op.supports_gradgrad and ends:
            second = torch.autograd.grad(ends, leaves + starts, [direction(x, 3) for x in ends], allow_unused=True)
            found["second"] = [x for x in second if x is not None]
    except Exception as error:
        found["error"] = error
    return found


def call_into(op, arguments, results):
    """Calls with out=, into memory that holds NaN and has gaps, and calls the in-place form."""
    input, args, kwargs = change(lambda x: x, type("", (), dict(zip(("input", "args", "kwargs"), arguments))))
    found = {}
    with torch.no_grad():
        if op.supports_out and len(results) == 1 and results[0].is_floating_point():
            wide = torch.full((*results[0].shape, 2), torch.nan, dtype=results[0].dtype)
            try:
                torch.manual_seed(1)
                op(input, *args, out=wide[..., 0], **kwargs)
                found["out"], found["beside out"] = [wide[..., 0]], [wide[..., 1]]
            except (RuntimeError, TypeError) as error:
                found["error"] = error
        if op.inplace_variant and isinstance(input, torch.Tensor):
            target = input.detach().clone()
            try:
                torch.manual_seed(1)
                op.inplace_variant(target, *args, **kwargs)
                found["in place"] = [target]
            except (RuntimeError, TypeError) as error:
                found["error"] = error
    return found


def forms(op, sample, arguments):
    found = call(op, sample, arguments)
    into = call_into(op, arguments, found.get("result", []))
    return found | {f"{what} (out or in place)" if what == "error" else what: value for what, value in into.items()}


def same_bits(ours, theirs):
    ours, theirs = ours.detach(), theirs.detach()
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape or ours.stride() != theirs.stride():
        return False
    ours, theirs = (x.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for x in (ours, theirs))
    return torch.equal(ours, theirs)


def assert_same_errors(ours, theirs):
    assert ours.keys() == theirs.keys(), (ours, theirs)
    for what in ours:
        if what.startswith("error"):
            assert (type(ours[what]), str(ours[what])) == (type(theirs[what]), str(theirs[what]))
        else:
            assert [(x.dtype, x.shape, x.stride()) for x in ours[what]] == \
                   [(x.dtype, x.shape, x.stride()) for x in theirs[what]], what


class Errors:
    """The errors over all samples of an operation that PyTorch computes with other bits: the sums of their squares,
    each divided by the square of its tensor's largest number."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.ours = self.theirs = self.once = 0

    def add(self, ours, theirs, exact, sums):
        """`sums` is the error that float32 sums may add, or None for an operation of several roundings."""
        ours, theirs, exact = (x.detach().double() for x in (ours, theirs, exact))
        finite = theirs.isfinite() & exact.isfinite()
        assert (ours.isfinite() | ~finite).all(), "inf or nan where PyTorch has none"
        special = ~theirs.isfinite()
        torch.testing.assert_close(ours[special], theirs[special], rtol=0, atol=0, equal_nan=True)
        ours, theirs, exact = ours[finite], theirs[finite], exact[finite]
        if not exact.any():
            return
        allowed = allowed_error(exact, 0 if sums is None else sums[finite], self.dtype)
        if sums is None:
            allowed = allowed.clamp_min(WORST * (theirs - exact).abs().max())
        error = (ours - exact).abs()
        worst = (error / allowed).argmax()
        assert (error <= allowed).all(), f"{ours[worst]} for {exact[worst]} (PyTorch: {theirs[worst]}): " \
                                         f"{error[worst] / allowed[worst]:.2f} times what is allowed"
        size = exact.abs().max()
        self.ours += (error / size).square().mean()
        self.theirs += ((theirs - exact) / size).square().mean()
        # The errors of one rounding are distributed evenly up to half a unit in the last place.
        self.once += (exact / size * HALF_PLACE[self.dtype]).square().mean() / 3

    def assert_small(self):
        assert self.ours <= max(MEAN**2 * self.theirs, self.once), \
            f"{(self.ours / self.theirs)**0.5:.2f} times PyTorch's, in the mean"


def judge(op, sample, dtype, errors=None):
    ours = forms(op, sample, change(lambda x: x, sample))
    with stock():
        theirs = forms(op, sample, change(lambda x: x, sample))
    assert_same_errors(ours, theirs)
    different = [what for what in ours if not what.startswith("error")
                 and not all(map(same_bits, ours[what], theirs[what]))]
    if not different:
        return
    assert errors is not None, f"{different} of {dtype} changed"
    exact = forms(op, sample, change(torch.Tensor.double, sample))
    sums = None
    if op.name in ONE_ROUNDING:
        input, args, kwargs = change(lambda x: x.double().abs(), sample)
        kwargs = {key: abs(value) if key in ("alpha", "beta") else value for key, value in kwargs.items()}
        products = max(x.numel() for x in tensors((input, args)))
        sums = sum_error(op(input, *args, **kwargs).detach(), products)
    for what in different:
        for i in range(len(ours[what])):
            once = sums if what in ("result", "out", "in place") else None
            if ours[what][i].dtype == dtype:
                errors[what].add(ours[what][i], theirs[what][i], exact[what][i], once)
            else:
                assert same_bits(ours[what][i], theirs[what][i]), f"a {ours[what][i].dtype} {what} changed"


@parametrize([torch.bfloat16, torch.float16])
def test_16_bit_results_are_as_near_as_pytorchs(op, dtype):
    errors = collections.defaultdict(lambda: Errors(dtype))
    for sample in samples(op, dtype):
        judge(op, sample, dtype, errors)
    for each in errors.values():
        if op.name not in HEAVY_TAILED:
            each.assert_small()


@parametrize([torch.float32, torch.float64])
def test_other_dtypes_keep_their_bits(op, dtype):
    for sample in samples(op, dtype):
        judge(op, sample, dtype)


@parametrize([torch.bfloat16, torch.float16, torch.float32], [op for op in OPS if op.error_inputs_func])
def test_errors_are_pytorchs(op, dtype):
    """Calls PyTorch's lists of wrong arguments, most of them float32, with everything in `dtype`."""
    def error_of(sample):
        try:
            torch.manual_seed(1)
            input, args, kwargs = change(lambda x: x.to(dtype) if x.dtype == torch.float32 else x, sample)
            op(input, *args, **kwargs)
        except Exception as error:
            return type(error), str(error)

    for each in op.error_inputs("cpu"):
        ours = error_of(each.sample_input)
        with stock():
            assert ours == error_of(each.sample_input)
