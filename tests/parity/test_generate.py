"""Compares generate() with transformers' generate(): greedy and sampled texts, and the logits that they come from."""

import pytest
import torch
from exact import assert_near
from test_llama import SMALL, make

CONFIGS = {
    "whole heads": {},
    "groups": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "stop tokens": {"num_key_value_heads": 3, "eos_token_id": [5, 6]},
}
NEW = 30
SAMPLING = {"all": {}, "temperature": {"temperature": 0.7}, "top k": {"top_k": 5}, "top p": {"top_p": 0.8},
            "all three": {"temperature": 1.3, "top_k": 20, "top_p": 0.9}}


def prompts(batch=2, length=9):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(7, SMALL["vocab_size"], (batch, length), generator=generator)


def theirs(model, prompt, **settings):
    """The new tokens, and the logits of each."""
    with torch.no_grad():
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW, output_logits=True,
                              return_dict_in_generate=True, pad_token_id=(model.config.eos_token_id or [0])[0], **settings)
    return made.sequences[:, prompt.shape[1]:], torch.stack(made.logits, 1).float()


def ours(runner, folder, prompt, dtype="fp32", temperature=0.0, top_k=0, top_p=1.0, seed=0):
    made = runner("models_runner")("generate", {"prompt": prompt}, folder, dtype, NEW, temperature, top_k, top_p, seed)
    return made["tokens"], made["logits"]


def make_saved(folder, changes, dtype=torch.float32):
    model = make({"eos_token_id": None} | changes).to(dtype)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("batch", [1, 3])
def test_greedy(tmp_path, runner, changes, batch):
    model, prompt = make_saved(tmp_path / "model", changes), prompts(batch)
    tokens, logits = theirs(model, prompt, do_sample=False)
    got_tokens, got_logits = ours(runner, tmp_path / "model", prompt)
    assert torch.equal(got_tokens, tokens)
    # Attention to the cache is the same in real numbers; one position and groups of heads sum in another order.
    assert_near(got_logits, logits, "logits")


def test_greedy_in_bf16(tmp_path, runner):
    model, prompt = make_saved(tmp_path / "model", {"num_key_value_heads": 2}, torch.bfloat16), prompts()
    tokens, logits = theirs(model, prompt, do_sample=False)
    got_tokens, got_logits = ours(runner, tmp_path / "model", prompt, "bf16")
    # Where rounding to 8 bits turns a choice, the texts part. They agree up to there.
    parted = (got_tokens != tokens).any(0).cumsum(0) > 0
    assert not parted[:5].any()
    together = ~parted.roll(1).index_fill(0, torch.tensor([0]), False)
    assert (got_logits - logits)[:, together].abs().max() <= 2 ** -5 * logits.abs().max()


@pytest.mark.parametrize("settings", SAMPLING.values(), ids=SAMPLING)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_from_the_same_seed(tmp_path, runner, settings, seed):
    model, prompt = make_saved(tmp_path / "model", {"num_key_value_heads": 2}), prompts()
    torch.manual_seed(seed)
    tokens, _ = theirs(model, prompt, do_sample=True, **{"top_k": 0, "top_p": 1.0, "temperature": 1.0} | settings)
    assert torch.equal(ours(runner, tmp_path / "model", prompt, seed=seed, **{"temperature": 1.0} | settings)[0], tokens)


def test_what_is_refused(tmp_path, runner):
    make_saved(tmp_path / "model", {})
    for prompt, settings, message in [(prompts(length=41), {}, "41 tokens is longer than the model's context of 40"),
                                      (prompts() + 53, {}, "the vocabulary is 0 to 52"),
                                      (prompts(), {"top_p": 1.5}, "top_p is 1.5"),
                                      (prompts(), {"temperature": -1.0}, "temperature is -1")]:
        with pytest.raises(ValueError, match=message):
            ours(runner, tmp_path / "model", prompt, **settings)
