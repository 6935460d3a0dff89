"""Compares Mantissa's Llama with transformers' LlamaForCausalLM: the same files, logits and gradients."""

import json

import pytest
import torch
import transformers
from exact import assert_as_exact, gradients

SMALL = {"vocab_size": 53, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
         "max_position_embeddings": 40, "initializer_range": 0.2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
CONFIGS = {
    "whole heads": {},
    "groups": {"num_key_value_heads": 2},
    "one group, tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 3},
    "llama3 scaling": {"rope_scaling": LLAMA3, "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "head_dim": 32},
    "linear scaling": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "padding": {"pad_token_id": 3, "eos_token_id": [5, 6], "bos_token_id": None},
}


def make(changes, seed=0):
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **changes, attn_implementation="sdpa"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start at 1 and 0
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def inputs(batch=3, length=40):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, SMALL["vocab_size"], (batch, length), generator=generator)
    return {"tokens": tokens, "upstream": torch.randn(batch, length, SMALL["vocab_size"], generator=generator)}


@pytest.mark.parametrize("length", [1, 7, 40])
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_logits_and_gradients(tmp_path, runner, changes, length):
    model = make(changes)
    model.save_pretrained(tmp_path / "theirs")
    given = inputs(length=length)
    ours = runner("models_runner")("llama", given, tmp_path / "theirs")
    logits = model(given["tokens"], use_cache=False).logits
    logits.backward(given["upstream"])
    assert torch.equal(ours.pop("logits"), logits)
    theirs = {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    assert ours.keys() == theirs.keys()
    if model.config.num_key_value_heads == model.config.num_attention_heads:
        for name, grad in theirs.items():
            assert torch.equal(ours[name], grad), f"{name}: {(ours[name] != grad).sum()} of {grad.numel()} differ"
    # transformers repeats the keys of a group itself, and so sums their gradients in another order than libtorch.
    assert_as_exact(ours, theirs, gradients(model, given["tokens"], given["upstream"]))


@pytest.mark.parametrize("shard_bytes", [0, 20000])
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_transformers_reads_what_we_save(tmp_path, runner, changes, shard_bytes):
    model = make(changes)
    # Theirs in shards as well, where ours is one file.
    model.save_pretrained(tmp_path / "theirs", max_shard_size="5GB" if shard_bytes else "20KB")
    runner("models_runner")("llama", inputs(), tmp_path / "theirs", tmp_path / "ours", shard_bytes)
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists() == bool(shard_bytes)
    read, loading = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    tokens = inputs()["tokens"]
    assert torch.equal(read(tokens).logits, model(tokens).logits)
    # Whatever our config.json says, it means the same to transformers.
    wanted, got = model.config.to_dict(), read.config.to_dict()
    unlike = {key for key in wanted if wanted[key] != got.get(key)} - {"_name_or_path", "architectures", "dtype"}
    assert not unlike, {key: (wanted[key], got.get(key)) for key in unlike}


def test_a_file_that_does_not_fit_is_named(tmp_path, runner):
    make({}).save_pretrained(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    for changed, message in [({"num_hidden_layers": 3}, "'model.layers.2.input_layernorm.weight' is missing"),
                             ({"hidden_act": "gelu"}, 'hidden_act "gelu" is not supported'),
                             ({"model_type": "mistral"}, "model_type is 'mistral'"),
                             ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "the kind 'yarn'")]:
        (tmp_path / "theirs" / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(ValueError, match=message):
            runner("models_runner")("llama", inputs(), tmp_path / "theirs")
