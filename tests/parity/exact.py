"""Compares two float32 results by their distance to the exact one. How far apart they are depends on the CPU's kernels, but neither
may be much worse than the other."""

import copy


def gradients(model, tokens, upstream):
    """The gradients that the model has in float64, by parameter."""
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    exact(tokens, use_cache=False).logits.backward(upstream.double())
    return {f"grad.{name}": parameter.grad for name, parameter in exact.named_parameters()}


def assert_as_exact(ours, theirs, exact, tolerance):
    """Each tensor of ours has an error of at most `tolerance` of its largest element, or at most twice theirs. Those that are 0 in exact
    arithmetic, as those of queries with one key are, have no largest element: they must be below 10 tolerances of the largest tensor."""
    assert ours.keys() == theirs.keys() == exact.keys()
    largest = max(wanted.abs().max() for wanted in exact.values())
    for name, wanted in exact.items():
        assert ours[name].shape == wanted.shape, name
        error = (ours[name] - wanted).abs().max()
        if wanted.abs().max() <= 1e-12 * largest:
            assert error <= 10 * tolerance * largest, name
        else:
            assert error <= max(tolerance * wanted.abs().max(), 2 * (theirs[name] - wanted).abs().max()), name
