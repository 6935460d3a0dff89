"""Random products and their gradients: within the bound of docs/cpu-kernels-numerics.md, or PyTorch's own results."""

import random

import pytest
import torch
import torch.nn.functional as F
from conftest import HALF_PLACE, allowed_error, stock, sum_error

ROWS = [1, 2, 3, 5, 16, 17, 31, 64, 100, 145]
DEPTHS = [1, 2, 7, 33, 64, 383, 384, 385, 800]  # around 384, after which the sums of a block are stored
FACTORS = [(1, 1), (0, 1), (0.5, 2), (2, 0.25)]  # beta, alpha
CASES = 12


def layout(rng, *shape):
    """Returns random numbers: dimensions in any order, with gaps, an offset, or one dimension repeated."""
    order = rng.sample(range(len(shape)), len(shape))
    steps = [rng.choice([1, 1, 1, 2]) for _ in shape]
    generator = torch.Generator().manual_seed(rng.getrandbits(30))
    memory = torch.randn([shape[i] * steps[i] for i in order], generator=generator)
    memory = torch.cat([memory.new_zeros(3), memory.flatten()])[3:].view(memory.shape)
    x = memory.permute([order.index(i) for i in range(len(shape))])
    x = x[tuple(slice(None, None, step) for step in steps)]
    repeated = rng.randrange(8 * len(shape) + 1)
    if repeated < len(shape) and x.shape[repeated]:
        x = x.narrow(repeated, 0, 1).expand(shape)
    return x


def in_dtype(x, dtype):
    """Returns a tensor with the same strides and with numbers that every dtype can hold."""
    result = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
    once = tuple(0 if stride == 0 else slice(None) for stride in x.stride())
    result[once] = x[once].to(torch.bfloat16).to(dtype)
    return result


# Each function maps (random choices, sizes) to (function, operands whose gradients are one product, other
# operands).
def mm(rng, b, m, n, k):
    return torch.mm, [layout(rng, m, k), layout(rng, k, n)], []


def addmm(rng, b, m, n, k):
    beta, alpha = rng.choice(FACTORS)
    return (lambda x, y, c: torch.addmm(c, x, y, beta=beta, alpha=alpha)), [layout(rng, m, k), layout(rng, k, n)], \
        [layout(rng, *rng.choice([(m, n), (n,), (m, 1), (1, 1), ()]))]


def bmm(rng, b, m, n, k):
    return torch.bmm, [layout(rng, b, m, k), layout(rng, b, k, n)], []


def baddbmm(rng, b, m, n, k):
    beta, alpha = rng.choice(FACTORS)
    return (lambda x, y, c: torch.baddbmm(c, x, y, beta=beta, alpha=alpha)), \
        [layout(rng, b, m, k), layout(rng, b, k, n)], [layout(rng, *rng.choice([(b, m, n), (m, n), (n,), (b, 1, 1)]))]


def linear(rng, b, m, n, k):
    return (lambda x, w, c: F.linear(x, w, c)), [layout(rng, m, k), layout(rng, n, k)], [layout(rng, n)]


def einsum(rng, b, m, n, k):
    """Sizes of 1 are left out, because broadcasting them rounds differently."""
    b, m, n, k = (size + (size == 1) for size in (b, m, n, k))
    return (lambda x, y: torch.einsum("kbi,bjk->ibj", x, y)), [layout(rng, k, b, m), layout(rng, b, n, k)], []


def matmul_broadcast(rng, b, m, n, k):
    """Has no gradients, because those of the repeated operand are sums of rounded products."""
    return torch.matmul, [], [layout(rng, 2, 1, m, k), layout(rng, b, k, n)]


def mv(rng, b, m, n, k):
    return torch.mv, [layout(rng, m, k), layout(rng, k)], []


def addmv(rng, b, m, n, k):
    return (lambda x, y, c: torch.addmv(c, x, y, beta=0.5, alpha=2)), \
        [layout(rng, m, k), layout(rng, k)], [layout(rng, m)]


def dot(rng, b, m, n, k):
    return torch.dot, [layout(rng, m * k), layout(rng, m * k)], []


FORMS = [mm, addmm, bmm, baddbmm, linear, einsum, matmul_broadcast, mv, addmv, dot]


def compute(function, operands, others, start):
    operands = [x.requires_grad_() for x in operands]
    result = function(*operands, *others)
    gradients = torch.autograd.grad(result, operands, start.to(result.dtype)) if operands else []
    return [result.detach(), *gradients]


@pytest.mark.products
@pytest.mark.parametrize("dtype", HALF_PLACE, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_random_layouts_are_within_the_bound(form, dtype):
    rng = random.Random(f"{form.__name__} {dtype}")
    for _ in range(CASES):
        b, m, n, k = rng.choice([1, 2, 5]), rng.choice(ROWS), rng.choice(ROWS), rng.choice(DEPTHS)
        function, operands, others = form(rng, b, m, n, k)
        low = [in_dtype(x, dtype) for x in operands], [in_dtype(x, dtype) for x in others]
        start = direction_of(function, *low)
        ours = compute(function, *low, start)
        exact = compute(function, *([x.detach().double() for x in xs] for xs in low), start)
        size = compute(function, *([x.detach().double().abs() for x in xs] for xs in low), start.abs())
        products = max(m * k if form is dot else k, m, n)
        for what, x, y, z in zip(range(3), ours, exact, size):
            assert x.dtype == dtype
            error, allowed = (x.double() - y).abs(), allowed_error(y, sum_error(z, products), dtype)
            if (error <= allowed).all():
                continue
            with stock():  # results that are left to PyTorch have its bits
                theirs = compute(function, *low, start)
            strides = [t.stride() for t in low[0] + low[1]]
            assert torch.equal(x, theirs[what]), f"output {what} of b={b} m={m} n={n} k={k}, strides {strides}: " \
                                                 f"{(error / allowed).max():.2f} times what is allowed"


def direction_of(function, operands, others):
    """Returns a starting gradient of numbers that every dtype can hold."""
    shape = function(*operands, *others).shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16).double()


@pytest.mark.products
@pytest.mark.parametrize("dtype", HALF_PLACE, ids=str)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("empty", ["b", "m", "n", "k"])
def test_empty_sizes(form, dtype, empty):
    rng = random.Random(5)
    function, operands, others = form(rng, **({"b": 3, "m": 20, "n": 17, "k": 9} | {empty: 0}))
    operands, others = [in_dtype(x, dtype) for x in operands], [in_dtype(x, dtype) for x in others]
    ours = compute(function, operands, others, direction_of(function, operands, others))
    exact = compute(function, *([x.detach().double() for x in xs] for xs in (operands, others)),
                    direction_of(function, operands, others))
    for x, y in zip(ours, exact):
        # Some forms do not support the size that is 0; they are ordinary products then.
        torch.testing.assert_close(x.double(), y, rtol=2 * HALF_PLACE[dtype], atol=2 * HALF_PLACE[dtype])


@pytest.mark.products
@pytest.mark.parametrize("dtype", HALF_PLACE, ids=str)
def test_outputs_over_inputs_are_pytorchs(dtype):
    """The output overlaps an input: the result is PyTorch's on one thread, or its error."""
    def over_an_input():
        a = start.clone()
        torch.mm(a, a, out=a)
        return a

    def over_a_part():
        both = torch.cat([start, start])
        try:
            torch.addmm(both[:40], start, start, out=both[1:41])
        except RuntimeError as error:
            return str(error)

    # The values are small, so that those that are read again after they were written do not grow to inf.
    start = torch.randn(40, 40, generator=torch.Generator().manual_seed(1)).to(dtype) / 16
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    ours = over_an_input(), over_a_part()
    with stock():
        assert torch.equal(ours[0], over_an_input())
        assert ours[1] == over_a_part() is not None
    torch.set_num_threads(threads)
