"""Compares Mantissa's public models of images with torchvision's: the same files, logits and gradients."""

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file

RESNETS = ["resnet18", "resnet50"]
SIZE, CLASSES = 64, 7


def make_resnet(name, seed=0):
    torch.manual_seed(seed)
    return torchvision.models.get_model(name, num_classes=CLASSES)


def randomize(model):
    """Gives norms and their statistics, which start at 1 and 0, other values."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 2)
            elif tensor.dim() == 1:
                tensor.add_(0.1 * torch.randn_like(tensor))
    return model


def inputs(batch=3):
    generator = torch.Generator().manual_seed(1)
    return {"images": torch.randn(batch, 3, SIZE, SIZE, generator=generator),
            "upstream": torch.randn(batch, CLASSES, generator=generator)}


def results_of(model, given):
    images = given["images"].clone().requires_grad_()
    logits = model(images)
    logits.backward(given["upstream"])
    results = {"logits": logits.detach(), "images": images.grad}
    results.update({f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()})
    return results


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", RESNETS)
def test_resnets_have_equal_bits(tmp_path, runner, name, mode):
    model = randomize(make_resnet(name)).train(mode == "train")
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    save_file(model.state_dict(), theirs)
    given = inputs()
    got, wanted = runner("vision_runner")(name, given, theirs, mode, ours), results_of(model, given)
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(got[key], value), key
    # Both have moved the statistics of their norms, and a file that was saved here loads there.
    saved = load_file(ours)
    assert all(torch.equal(saved[key], value) for key, value in model.state_dict().items())
    fresh = make_resnet(name, seed=5)
    fresh.load_state_dict(saved, strict=True)
    images = given["images"]
    assert torch.equal(fresh.eval()(images), model.eval()(images))


@pytest.mark.parametrize("name", RESNETS)
def test_the_same_seed_gives_the_weights_of_torchvision(tmp_path, runner, name):
    saved = tmp_path / "ours.safetensors"
    runner("vision_runner")(name, inputs(), "seed:3", "eval", saved)
    ours, theirs = load_file(saved), make_resnet(name, seed=3).state_dict()
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        assert torch.equal(ours[key], value), key
