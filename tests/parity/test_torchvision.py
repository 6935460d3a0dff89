"""Compares Mantissa's public models of images with torchvision's and timm's: the same files, logits and gradients."""

import pytest
import timm
import torch
import torchvision
from exact import assert_near
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


def inputs(batch=3, size=SIZE):
    generator = torch.Generator().manual_seed(1)
    return {"images": torch.randn(batch, 3, size, size, generator=generator),
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


VIT_SIZE = 32


def make_vit(peer, seed=0):
    torch.manual_seed(seed)
    if peer == "timm":
        model = timm.models.VisionTransformer(img_size=VIT_SIZE, patch_size=8, depth=3, num_heads=4, embed_dim=48, mlp_ratio=2,
                                              num_classes=CLASSES)
    else:
        model = torchvision.models.VisionTransformer(image_size=VIT_SIZE, patch_size=8, num_layers=3, num_heads=4,
                                                     hidden_dim=48, mlp_dim=96, num_classes=CLASSES)
    with torch.no_grad():
        for parameter in model.parameters():  # some begin with zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("peer", ["torchvision", "timm"])
def test_vision_transformers(tmp_path, runner, peer, mode):
    model = make_vit(peer).train(mode == "train")
    theirs, ours = tmp_path / "theirs.safetensors", tmp_path / "ours.safetensors"
    save_file(model.state_dict(), theirs)
    given = inputs(size=VIT_SIZE)
    got = runner("vision_runner")(f"vit-small-{peer}", given, theirs, mode, ours)
    wanted = results_of(model, given)
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        if peer == "timm":  # the same operations
            assert torch.equal(got[key], value), key
        else:  # torchvision has batch and patches exchanged, so that products sum in another order
            assert_near(got[key], value, key)
    fresh = make_vit(peer, seed=5)
    fresh.load_state_dict(load_file(ours), strict=True)
    assert all(torch.equal(value, fresh.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(("peer", "other"), [("torchvision", "timm"), ("timm", "torchvision")])
def test_files_with_the_other_names(tmp_path, runner, peer, other):
    """A file of one of them loads in the other, after it went through our model."""
    model, saved = make_vit(peer).eval(), tmp_path / "ours.safetensors"
    save_file(model.state_dict(), tmp_path / "theirs.safetensors")
    given = inputs(size=VIT_SIZE)
    runner("vision_runner")(f"vit-small-{other}", given, tmp_path / "theirs.safetensors", "eval", saved)
    read = make_vit(other, seed=5).eval()
    read.load_state_dict(load_file(saved), strict=True)
    torch.testing.assert_close(read(given["images"]), model(given["images"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "make"), [
    ("vit_tiny_patch16_224", lambda: timm.create_model("vit_tiny_patch16_224", img_size=32)),
    ("vit_small_patch16_224", lambda: timm.create_model("vit_small_patch16_224", img_size=32)),
    ("vit_b_16", lambda: torchvision.models.vit_b_16(image_size=32)),
    ("vit_base_patch16_224", lambda: timm.create_model("vit_base_patch16_224", img_size=32)),
])
def test_public_sizes_have_the_tensors_of_their_peers(tmp_path, runner, name, make):
    saved = tmp_path / "ours.safetensors"
    given = {"images": torch.zeros(1, 3, 32, 32), "upstream": torch.zeros(1, 1000)}
    runner("vision_runner")(name, given, "seed:0", "eval", saved)
    with torch.device("meta"):
        theirs = make().state_dict()
    ours = load_file(saved)
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in theirs.items()}
