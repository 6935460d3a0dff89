"""mantissa convert --to and --dequantize against bitsandbytes, live: each reads the other's files, bit for bit."""

import json
import subprocess

import bitsandbytes as bnb
import bitsandbytes.functional as F
import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file, save_file

FORMATS = ["nf4", "nf4-dq", "fp4", "fp4-dq"]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def convert(tmp_path):
    def call(tensors, *arguments):
        """Returns the tensors of the converted file."""
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "in.safetensors")
        subprocess.run([BUILD / "mantissa", "convert", "--overwrite", tmp_path / "in.safetensors",
                        tmp_path / "out.safetensors", *arguments], check=True, capture_output=True)
        return load_file(tmp_path / "out.safetensors")

    return call


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def network(dtype):
    return {"embed.weight": torch.randn(50, 64).to(dtype), "fc.weight": torch.randn(96, 64).to(dtype),
            "fc.bias": torch.randn(96).to(dtype), "out.weight": torch.randn(33, 128).to(dtype)}


def states_of(tensors, name):
    prefix = name + "."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", FORMATS)
def test_Q18_bitsandbytes_restores_the_same_bits_from_our_file(convert, format, dtype):
    tensors = network(dtype)
    quantized = convert(tensors, "--to", format)
    back = convert(quantized, "--dequantize")
    for name in ("fc.weight", "out.weight"):
        weight = bnb.nn.Params4bit.from_prequantized(quantized[name], states_of(quantized, name), device="cpu")
        assert weight.quant_state.dtype == dtype and weight.quant_state.nested == format.endswith("-dq")
        assert torch.equal(back[name], F.dequantize_4bit(weight.data, weight.quant_state)), name
    for name in ("embed.weight", "fc.bias"):
        assert torch.equal(quantized[name], tensors[name]) and torch.equal(back[name], tensors[name]), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("format", ["nf4", "fp4"])
def test_Q17_we_restore_the_same_bits_from_a_file_of_bitsandbytes(convert, format, nested, dtype):
    layer = bnb.nn.Linear4bit(64, 96, quant_type=format, compress_statistics=nested)
    layer.weight = bnb.nn.Params4bit(torch.randn(96, 64).to(dtype), requires_grad=False, quant_type=format,
                                     compress_statistics=nested)
    layer = layer.to("cpu")
    theirs = {f"model.layer.{name}": tensor for name, tensor in layer.state_dict().items()}
    back = convert(theirs, "--dequantize")
    assert back.keys() == {"model.layer.weight", "model.layer.bias"}
    assert torch.equal(back["model.layer.weight"], F.dequantize_4bit(layer.weight.data, layer.weight.quant_state))
    cast = convert(theirs, "--dtype", "fp16")
    assert cast.keys() == theirs.keys()
    for name, tensor in theirs.items():
        expected = tensor.half() if name.endswith("bias") else tensor
        assert cast[name].dtype == expected.dtype and torch.equal(cast[name], expected), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_Q32_int8_files_travel_both_ways(convert, dtype):
    tensors = network(dtype)
    quantized = convert(tensors, "--to", "int8")
    layer = bnb.nn.Linear8bitLt(64, 96, has_fp16_weights=False, threshold=6.0)
    layer.load_state_dict({"weight": tensors["fc.weight"], "bias": tensors["fc.bias"]})
    layer = layer.to("cpu")
    theirs = {f"fc.{name}": tensor for name, tensor in layer.state_dict().items()}
    ours = {name: tensor for name, tensor in quantized.items() if name.startswith("fc.")}
    assert ours.keys() == theirs.keys()
    assert torch.equal(ours["fc.SCB"], theirs["fc.SCB"].float())
    # 127 / scale is a reciprocal and a product in libtorch, so that a code may be the next one.
    difference = (ours["fc.weight"].int() - theirs["fc.weight"].int()).abs()
    assert difference.max() <= 1 and (difference > 0).float().mean() < 1e-3
    fresh = bnb.nn.Linear8bitLt(64, 96, has_fp16_weights=False, threshold=6.0)
    fresh.load_state_dict({"weight": tensors["fc.weight"], "bias": tensors["fc.bias"]})
    fresh = fresh.to("cpu")
    fresh.load_state_dict({name.removeprefix("fc."): tensor for name, tensor in ours.items()})
    assert torch.equal(fresh.weight.data, ours["fc.weight"])
    for file in (ours, theirs):
        back = convert(file, "--dequantize", "--dtype", "fp32")
        assert torch.equal(back["fc.weight"], file["fc.weight"].float() * file["fc.SCB"].float()[:, None] / 127)


def test_transformers_loads_what_we_convert(convert, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=96, max_position_embeddings=32)
    folder = tmp_path / "model"
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    floats = load_file(folder / "model.safetensors")
    quantized = convert(floats, "--to", "nf4-dq", "--metadata", "format=pt")
    assert {name for name, tensor in quantized.items() if name.endswith("weight") and tensor.dtype == torch.uint8} == {
        name for name in floats if "proj" in name}, "transformers quantizes the same layers"
    save_file(quantized, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
                                       "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(settings))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map="cpu")
    restored = convert(quantized, "--dequantize")
    layers = 0
    for name, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear4bit):
            layers += 1
            assert torch.equal(F.dequantize_4bit(module.weight.data, module.weight.quant_state),
                               restored[name + ".weight"]), name
    assert layers == 14
