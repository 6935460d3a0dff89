"""LoRA, rsLoRA and DoRA against PEFT, live: values, gradients, training, merged weights, and files in both directions."""

import json

import bitsandbytes as bnb
import peft.tuners.lora.torchao
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

# PEFT asks whether torchao is installed, and then for names that this release of torchao has no longer.
peft.tuners.lora.torchao.is_torchao_available = lambda: False

KINDS = {
    "lora": dict(r=4, lora_alpha=12, target_modules=["fc1", "fc2"]),
    "one layer": dict(r=4, lora_alpha=12, target_modules=["fc2"]),
    "expression": dict(r=3, lora_alpha=3, target_modules=r"fc\d"),
    "an expression of Python": dict(r=3, target_modules=r"(?P<name>fc)(?!3)\d(?<=[12])"),
    "all-linear": dict(r=3, target_modules="all-linear"),
    "rslora": dict(r=9, lora_alpha=4, use_rslora=True, target_modules=["fc1", "fc2"]),
    "dora": dict(r=4, lora_alpha=12, use_dora=True, target_modules=["fc1", "fc2"]),
    "rsdora": dict(r=4, lora_alpha=12, use_dora=True, use_rslora=True, target_modules=["fc1"]),
    "patterns": dict(r=2, target_modules=["fc1", "fc2"], rank_pattern={"fc2": 5}, alpha_pattern={"fc1": 3}),
    "fractional alpha": dict(r=2, lora_alpha=0.75, lora_dropout=0.1, target_modules=["fc1"]),
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = torch.nn.Linear(12, 20)
        self.fc2 = torch.nn.Linear(20, 7)

    def forward(self, x):
        return self.fc2(torch.tanh(self.fc1(x)))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


@pytest.fixture
def run(runner):
    return runner("lora_runner")


def adapted(net, kind):
    """Adds PEFT's adapter, with values that change something."""
    model = get_peft_model(net, LoraConfig(**KINDS[kind]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def inputs(net):
    base = {name: value.detach().clone() for name, value in net.state_dict().items()}
    return base | {"x": torch.randn(9, 12), "gy": torch.randn(9, 7), "target": torch.randn(9, 7)}


def by_our_name(name):
    return name.removeprefix("base_model.model.")


def assert_close(ours, theirs, what):
    # The products are made of others, and sums have another order.
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize("kind", KINDS)
def test_peft_adapters_compute_the_same_here(kind, run, tmp_path):
    net = Net()
    tensors = inputs(net)
    model = adapted(net, kind).eval()
    model.save_pretrained(tmp_path / "adapter")
    if KINDS[kind].get("lora_dropout"):  # the runner's net is in training mode
        config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
        (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config | {"lora_dropout": 0.0}))
    ours = run("compute", tensors, tmp_path / "adapter")
    x = tensors["x"].clone().requires_grad_()
    y = model(x)
    y.backward(tensors["gy"])
    assert_close(ours["y"], y.detach(), "y")
    assert_close(ours["x.grad"], x.grad, "the input's gradient")
    gradients = {by_our_name(name) + ".grad": p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert {name for name in ours if name.endswith("weight.grad")} == set(gradients)
    for name, gradient in gradients.items():
        assert_close(ours[name], gradient, name)
    merged = model.merge_and_unload()
    assert_close(ours["fc1.merged"], merged.fc1.weight.detach(), "fc1")
    assert_close(ours["fc2.merged"], merged.fc2.weight.detach(), "fc2")


class Net4Bit(torch.nn.Module):
    """The weights of a Net in 4 bits."""

    is_loaded_in_4bit = True  # by this, PEFT chooses its layer for such weights

    def __init__(self, net, format):
        super().__init__()
        self.fc1, self.fc2 = (self.quantized(layer, format) for layer in (net.fc1, net.fc2))

    @staticmethod
    def quantized(layer, format):
        made = bnb.nn.Linear4bit(layer.in_features, layer.out_features, compute_dtype=torch.float32,
                                 compress_statistics=False, quant_type=format)
        made.load_state_dict(layer.state_dict())
        return made.to("cpu")  # this move quantizes

    forward = Net.forward


@pytest.mark.parametrize("format", ["nf4", "fp4"])
@pytest.mark.parametrize("kind", ["lora", "rslora", "dora"])
def test_adapters_on_4_bit_weights_compute_the_same(kind, format, run, tmp_path):
    net = Net()
    with torch.no_grad():  # Mantissa rounds to float16 first, as Lightning does
        for layer in (net.fc1, net.fc2):
            layer.weight.copy_(layer.weight.half())
    tensors = inputs(net)
    model = adapted(Net4Bit(net, format), kind).eval()
    model.save_pretrained(tmp_path / "adapter")
    ours = run("compute", tensors, tmp_path / "adapter", format)
    x = tensors["x"].clone().requires_grad_()
    y = model(x)
    y.backward(tensors["gy"])
    assert_close(ours["y"], y.detach(), "y")
    assert_close(ours["x.grad"], x.grad, "the input's gradient")
    for name, p in model.named_parameters():
        if p.requires_grad:
            assert_close(ours[by_our_name(name) + ".grad"], p.grad, name)
    # A value near a threshold may get the other code.
    merged = model.merge_and_unload()
    for name in ["fc1", "fc2"]:
        weight = getattr(merged, name).weight
        theirs = bnb.functional.dequantize_4bit(weight.data, weight.quant_state)
        differ = ~torch.isclose(ours[name + ".merged"], theirs.float(), rtol=1e-3, atol=1e-5)
        assert differ.float().mean() < 0.01, name


@pytest.mark.parametrize("kind", ["lora", "rslora", "dora"])
def test_training_takes_the_same_steps(kind, run, tmp_path):
    net = Net()
    tensors = inputs(net)
    model = adapted(net, kind)
    model.save_pretrained(tmp_path / "adapter")
    ours = run("train", tensors, tmp_path / "adapter", 10)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(tensors["x"]), tensors["target"]).backward()
        optimizer.step()
    trained = {by_our_name(name): p.detach() for name, p in model.named_parameters() if p.requires_grad}
    assert set(ours) == set(trained)
    for name, value in trained.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5, msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_our_files(kind, run, tmp_path):
    net = Net()
    tensors = inputs(net)
    get_peft_model(Net(), LoraConfig(**KINDS[kind])).save_pretrained(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config | {"lora_dropout": 0.0}))
    ours = run("save", tensors, tmp_path / "adapter")
    names = set(load_file(tmp_path / "adapter/adapter_model.safetensors"))
    theirs = adapted(Net(), kind)
    theirs.save_pretrained(tmp_path / "theirs")
    assert names == set(load_file(tmp_path / "theirs/adapter_model.safetensors"))
    model = PeftModel.from_pretrained(net, tmp_path / "adapter").eval()
    assert_close(ours["y"], model(tensors["x"]).detach(), "y")
    loaded = model.peft_config["default"]
    for option in ["r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"]:
        assert getattr(loaded, option) == getattr(theirs.peft_config["default"], option), option


def test_an_adapter_of_another_rank_is_refused(run, tmp_path):
    net = Net()
    adapted(net, "lora").save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter/adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"r": 5}))
    with pytest.raises(ValueError, match=r"lora_A.weight.*rank 5"):
        run("compute", inputs(Net()), tmp_path / "adapter")


@pytest.mark.parametrize("option", [dict(bias="all"), dict(modules_to_save=["fc1"]), dict(lora_bias=True)], ids=str)
def test_what_is_not_supported_is_refused_by_name(option, run, tmp_path):
    config = LoraConfig(r=4, target_modules=["fc2"], **option)
    get_peft_model(Net(), config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=next(iter(option))):
        run("compute", inputs(Net()), tmp_path / "adapter")
