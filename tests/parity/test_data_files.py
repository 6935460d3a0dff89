"""Compares files of arrays, tables, CIFAR and conversations with what NumPy, torchvision and transformers read from them."""

import csv
import io
import json
import subprocess

import numpy as np
import pytest
import torch
from conftest import BUILD
from safetensors.torch import load_file
from torchvision import transforms


@pytest.fixture
def read(tmp_path):
    def run(op, file, **words):
        out = tmp_path / "read.safetensors"
        jobs = json.dumps([{"op": op, "file": str(file), **words}])
        done = subprocess.run([BUILD / "image_runner", out], input=jobs, capture_output=True, text=True)
        if done.returncode == 2:
            raise ValueError(done.stderr)
        done.check_returncode()
        return load_file(out)

    return run


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_those_that_numpy_saved(read, tmp_path, dtype, order):
    rng = np.random.default_rng(1)
    for shape in [(), (7,), (3, 5), (2, 3, 4, 5), (0, 4)]:
        array = np.asarray(rng.integers(0, 100, shape).astype(dtype), order=order)
        for version in [(1, 0), (2, 0), (3, 0)]:
            with open(tmp_path / "a.npy", "wb") as file:
                np.lib.format.write_array(file, array, version=version)
            got = read("npy", tmp_path / "a.npy")["0"]
            want = torch.from_numpy(np.ascontiguousarray(array)).reshape(shape)
            assert got.dtype == want.dtype and torch.equal(got, want)


@pytest.mark.parametrize("dtype", [">f4", "uint64", "complex64", "U3", "O", "M8[s]", [("a", "f4")]])
def test_arrays_that_are_no_tensor_are_refused(read, tmp_path, dtype):
    np.save(tmp_path / "a.npy", np.zeros(3, dtype=dtype))
    with pytest.raises(ValueError, match="a.npy"):
        read("npy", tmp_path / "a.npy")


@pytest.mark.parametrize("dialect", ["excel", "unix"])
def test_tables_are_those_that_the_csv_module_wrote(read, tmp_path, dialect):
    rng = np.random.default_rng(2)
    data = rng.normal(size=(50, 3)) * [1, 1e-20, 1e20]
    names = np.array(['a, "b"', "two\nlines", "c", " "])[rng.integers(0, 4, 50)]
    with open(tmp_path / "a.csv", "w", newline="") as file:
        writer = csv.writer(file, dialect)
        writer.writerow(["x", "y, z", 'the "w"', "class"])
        for row, name in zip(data, names):
            writer.writerow([*map(repr, row.tolist()), str(name)])
    got = read("csv", tmp_path / "a.csv")
    assert torch.equal(got["0.data"], torch.from_numpy(data.astype(np.float32)))
    assert torch.equal(got["0.target"], torch.from_numpy(np.unique(names, return_inverse=True)[1]))


@pytest.mark.parametrize("classes", [10, 100])
def test_cifar_is_normalized_as_torchvision_does(read, tmp_path, classes):
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (9, 3, 32, 32), dtype=np.uint8)
    labels = rng.integers(0, classes, 9, dtype=np.uint8)
    file = io.BytesIO()
    for image, label in zip(images, labels):
        file.write(bytes([label] if classes == 10 else [label // 5, label]) + image.tobytes())
    (tmp_path / ("data_batch_1.bin" if classes == 10 else "train.bin")).write_bytes(file.getvalue())
    normalize = transforms.Compose([transforms.ToTensor(),
                                    transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))])
    got = read("cifar", tmp_path, classes=classes)
    assert torch.equal(got["0.data"], torch.stack([normalize(image.transpose(1, 2, 0)) for image in images]))
    assert got["0.target"].tolist() == labels.tolist()


CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}"
          "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}"
          "{% endfor %}")
LLAMA3 = ("{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}"
          "{% if m.role == 'assistant' %}{% generation %}{{ m.content + '<|eot_id|>' }}{% endgeneration %}"
          "{% else %}{{ m.content + '<|eot_id|>' }}{% endif %}{% endfor %}")


@pytest.mark.parametrize("name, template, special", [
    ("chatml", CHATML, ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]),
    ("llama3", LLAMA3, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
])
def test_conversations_have_the_ids_and_masks_of_transformers(read, tmp_path, name, template, special):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = ["the answer is", "four", "five  six", " spaces ", "two\nlines\n", "caf\u00e9 \u4f60\u597d", "system user", "x" * 40]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(words * 5, trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    made.save(str(tmp_path / "tokenizer.json"))
    theirs = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template)
    rng = np.random.default_rng(4)
    chats = []
    for turns in range(1, 5):
        chat = [{"role": "system", "content": words[turns]}] if turns % 2 else []
        for _ in range(turns):
            chat += [{"role": role, "content": str(rng.choice(words))} for role in ("user", "assistant")]
        chats.append(chat)
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    context = 256
    got = read("chat", tmp_path / "chat.jsonl", tokenizer=str(tmp_path), template="auto", context=context)
    for row, chat in enumerate(chats):
        want = theirs.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        ids, mask = want["input_ids"], want["assistant_masks"]
        assert len(ids) <= context + 1 and sum(mask) > 0
        assert got["0.data"][row][:len(ids) - 1].tolist() == ids[:-1]
        target = [one if counts else -100 for one, counts in zip(ids[1:], mask[1:])]
        assert got["0.target"][row].tolist() == target + [-100] * (context - len(target))
