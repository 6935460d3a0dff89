"""Compares two float32 results by their distance to the exact one. How far apart they are depends on the CPU's kernels, but neither
may be much worse than the other."""

import copy


def gradients(model, tokens, upstream):
    """The gradients that the model has in float64, by parameter."""
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    exact(tokens, use_cache=False).logits.backward(upstream.double())
    return {f"grad.{name}": parameter.grad for name, parameter in exact.named_parameters()}


# Rounding costs a small transformer up to 2e-6 of a tensor's largest element, on either side and by CPU. The smallest defects that a
# model can have, tanh's GELU for the exact one or an epsilon of 1e-6 for 1e-5, cost 1e-4 and more.
TOLERANCE = 1e-5


def assert_near(ours, theirs, name):
    assert ours.shape == theirs.shape, name
    assert (ours - theirs).abs().max() <= TOLERANCE * theirs.abs().max(), name


def assert_as_exact(ours, theirs, exact):
    """Each tensor of ours has an error of at most TOLERANCE of its largest element, or at most twice theirs. Those that are 0 in exact
    arithmetic, as those of queries with one key are, have no largest element: they must be below TOLERANCE of the largest tensor's."""
    assert ours.keys() == theirs.keys() == exact.keys()
    largest = max(wanted.abs().max() for wanted in exact.values())
    for name, wanted in exact.items():
        assert ours[name].shape == wanted.shape, name
        error = (ours[name] - wanted).abs().max()
        if wanted.abs().max() <= 1e-12 * largest:
            assert error <= TOLERANCE * largest, name
        else:
            assert error <= max(TOLERANCE * wanted.abs().max(), 2 * (theirs[name] - wanted).abs().max()), name
