"""Compares Mantissa's Gpt2 with transformers' GPT2LMHeadModel: the same files, logits, gradients and texts."""

import json

import pytest
import torch
import transformers
from exact import assert_as_exact, assert_near, gradients
from safetensors.torch import load_file, save_file

SMALL = {"vocab_size": 53, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 40, "initializer_range": 0.2,
         "bos_token_id": None, "eos_token_id": None}
CONFIGS = {
    "tied": {},
    "untied": {"tie_word_embeddings": False, "eos_token_id": [5, 6]},
    "another width and exact GELU": {"n_inner": 80, "activation_function": "gelu", "layer_norm_epsilon": 1e-3},
    "no dropout": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 7},
}


def make(changes, seed=0):
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SMALL | changes, attn_implementation="sdpa"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which start at 1 and 0
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


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
    ours = runner("models_runner")("gpt2", given, tmp_path / "theirs")
    logits = model(given["tokens"], use_cache=False).logits
    logits.backward(given["upstream"])
    # Products with transposed weights, and GELU in one operation, round otherwise.
    assert_near(ours.pop("logits"), logits, "logits")
    theirs = {f"grad.{name}": parameter.grad for name, parameter in model.named_parameters()}
    assert_as_exact(ours, theirs, gradients(model, given["tokens"], given["upstream"]))


@pytest.mark.parametrize("shard_bytes", [0, 20000])
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
def test_transformers_reads_what_we_save(tmp_path, runner, changes, shard_bytes):
    model = make(changes)
    # Theirs in shards as well, where ours is one file.
    model.save_pretrained(tmp_path / "theirs", max_shard_size="5GB" if shard_bytes else "20KB")
    runner("models_runner")("gpt2", inputs(), tmp_path / "theirs", tmp_path / "ours", shard_bytes)
    assert (tmp_path / "ours" / "model.safetensors.index.json").exists() == bool(shard_bytes)
    read, loading = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    tokens = inputs()["tokens"]
    assert torch.equal(read.eval()(tokens).logits, model(tokens).logits)
    wanted, got = model.config.to_dict(), read.config.to_dict()
    unlike = {key for key in wanted if wanted[key] != got.get(key)} - {"_name_or_path", "architectures", "dtype"}
    assert not unlike, {key: (wanted[key], got.get(key)) for key in unlike}


def test_the_first_files_have_no_prefix_and_have_masks(tmp_path, runner):
    model = make({})
    model.save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    weights = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    for layer in range(2):
        weights[f"h.{layer}.attn.bias"] = torch.ones(40, 40).tril().view(1, 1, 40, 40)
        weights[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, file, metadata={"format": "pt"})
    given = inputs()
    assert_near(runner("models_runner")("gpt2", given, tmp_path / "theirs")["logits"], model(given["tokens"]).logits, "logits")


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 20, "top_p": 0.9}])
def test_texts(tmp_path, runner, settings):
    model, prompt = make({}), inputs(2, 9)["tokens"]
    model.save_pretrained(tmp_path / "theirs")
    torch.manual_seed(4)
    sampling = {"do_sample": True, **settings} if settings["temperature"] else {"do_sample": False}
    with torch.no_grad():
        theirs = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=30, pad_token_id=0, **sampling)
    ours = runner("models_runner")("generate", {"prompt": prompt}, tmp_path / "theirs", "fp32", 30, settings["temperature"],
                                   settings.get("top_k", 0), settings.get("top_p", 1.0), 4)
    assert torch.equal(ours["tokens"], theirs[:, 9:])


def test_a_file_that_does_not_fit_is_named(tmp_path, runner):
    make({}).save_pretrained(tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    for changed, message in [({"n_layer": 3}, "'transformer.h.2.attn.c_attn.bias' is missing"),
                             ({"activation_function": "relu"}, "activation_function 'relu' is not supported"),
                             ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx true"),
                             ({"model_type": "mistral"}, "model_type is 'mistral'")]:
        (tmp_path / "theirs" / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(ValueError, match=message):
            runner("models_runner")("gpt2", inputs(), tmp_path / "theirs")
