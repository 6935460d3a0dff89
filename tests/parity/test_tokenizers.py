"""Compares Mantissa's tokenizers with the tokenizers package: small ones are trained or made here, with the steps of GPT-2's
and Llama's files."""

import json
import random
import subprocess

import pytest
from conftest import BUILD
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)
from transformers import GPT2TokenizerFast

SPACE = "\u2581"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
PROSE = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak, speak.

First Citizen:
You are all resolved rather to die than to famish? We'll revenge this with our pikes, ere we become rakes: for
the gods know I speak this in hunger for bread, not in thirst for revenge.

  It'd cost 1234567 pounds in 1623,   they'Ve said; I'M sure\tthat's   right.
"""
ODD = [
    "", " ", "   ", "\n", "a", " a", "a ", "  a  b  ", "\r\n\r\n x", "\t\tTab", "don't DON'T \u2019s '\u017f",
    "na\u00efve caf\u00e9 cafe\u0301", "\u4f60\u597d\uff0c\u4e16\u754c", "\U0001f600\U0001f44d\U0001f3fd \U0001f469\u200d\U0001f4bb",
    "\u180e\u180e x\u180ey", "a\u00a0b\u2003c\u2028d\u3000e\u0085f\u200bg", "\x00\x01\x7f", "\u0664\u0665 \u2168 \u00bd \u0be7",
    "\U00031350\U0002ebf0 \U00016d40 \U0001e4f0", "x" * 300, " " * 100 + "y", "12345678901234567890", "\ufeffBOM \ufffd",
    SPACE + "x" + SPACE * 3 + "y " + SPACE, "<s>hi</s> <s> there", "<|endoftext|>", "a<|endoftext|>b <|endoftext|> c",
    "<|end|> <|endof|>  <|end|>x <|end|>", "word wordy sword word", "left   <l> <r>   right <n>!", "<0x41><0x0A>", "<unk>",
]


def texts():
    generator = random.Random(3)
    ranges = [(0, 0x80), (0x80, 0x800), (0x2000, 0x2070), (0x3000, 0x3100), (0x1F300, 0x1F650), (0xAC00, 0xAD00), (0, 0xD7FF),
              (0xE000, 0x10FFFF)]
    made = []
    for _ in range(400):
        low, high = generator.choice(ranges)
        pick = [chr(generator.randint(low, high)) for _ in range(generator.randint(1, 12))]
        made.append("".join(generator.choice([*pick, " ", "e", "the ", "1", "\n", "'s", "<s>"]) for _ in range(20)))
    words = PROSE.split(" ")
    for _ in range(100):
        made.append(" ".join(generator.choices(words, k=generator.randint(1, 30))))
    return [PROSE, PROSE * 3, *ODD, *made]


SPECIAL = [AddedToken("<|endoftext|>", special=True, normalized=False), AddedToken("<|end|>", special=True, normalized=False),
           AddedToken("<|endof|>", special=True, normalized=False, lstrip=True)]
PLAIN = [AddedToken("word", single_word=True, normalized=False), AddedToken("<l>", lstrip=True, normalized=False),
         AddedToken("<r>", rstrip=True, normalized=False), AddedToken("<n>"), AddedToken("a b", normalized=True)]


def byte_level(pre_tokenizer, vocabulary=400, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([PROSE] * 3, trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def gpt2(add_prefix_space=False):
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(SPECIAL[:1])
    return tokenizer


def gpt2_added():
    tokenizer = gpt2(add_prefix_space=True)
    tokenizer.add_special_tokens(SPECIAL[1:])
    tokenizer.add_tokens(PLAIN)
    return tokenizer


def llama3(ignore_merges=True):
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    state = json.loads(tokenizer.to_str())
    state["model"]["ignore_merges"] = ignore_merges
    for token in ("\u0120reven", "zzz", "\u0120Cit1zen"):  # tokens that no merge makes
        state["model"]["vocab"].setdefault(token, len(state["model"]["vocab"]))
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens(SPECIAL)
    begin = tokenizer.token_to_id("<|end|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|end|> $A", pair="<|end|> $A <|end|> $B", special_tokens=[("<|end|>", begin)])])
    return tokenizer


def sentencepiece(vocab_bytes=True, fuse_unk=True, metaspace=None, unk="<unk>"):
    """A Llama 2: as transformers converts it (legacy normalizers), or with Metaspace."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE)
    trained.train_from_iterator([PROSE] * 3, trainers.BpeTrainer(vocab_size=200, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    names = ["<unk>", "<s>", "</s>"]
    if vocab_bytes:
        names += [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {name: i for i, name in enumerate(names)}
    for token in sorted(state["vocab"], key=state["vocab"].get):
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(pair) for pair in state["merges"]], unk_token=unk,
                                     fuse_unk=fuse_unk, byte_fallback=True))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, **metaspace)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A $B",
                                                             special_tokens=[("<s>", 1), ("</s>", 2)])
    return tokenizer


def metaspace_decoder(scheme):
    tokenizer = sentencepiece(metaspace={"prepend_scheme": scheme, "split": True})
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    return tokenizer


def no_decoder():
    tokenizer = sentencepiece()
    tokenizer.decoder = None
    tokenizer.post_processor = None
    return tokenizer


def normalized_tokens():
    tokenizer = sentencepiece()
    tokenizer.add_tokens([AddedToken("hear me"), AddedToken("<n>", lstrip=True), AddedToken("you", single_word=True)])
    return tokenizer


MAKERS = {
    "GPT-2": gpt2,
    "GPT-2 with a space before": lambda: gpt2(add_prefix_space=True),
    "GPT-2 with added tokens": gpt2_added,
    "Llama 3": llama3,
    "Llama 3, merges only": lambda: llama3(ignore_merges=False),
    "Llama 2": sentencepiece,
    "Llama 2 without bytes": lambda: sentencepiece(vocab_bytes=False),
    "Llama 2 without bytes, each unknown": lambda: sentencepiece(vocab_bytes=False, fuse_unk=False),
    "Llama 2, nothing for unknown": lambda: sentencepiece(vocab_bytes=False, unk=None),
    "Llama 2 with added tokens": normalized_tokens,
    "Metaspace first": lambda: sentencepiece(metaspace={"prepend_scheme": "first", "split": False}),
    "Metaspace always": lambda: metaspace_decoder("always"),
    "Metaspace never": lambda: metaspace_decoder("never"),
    "no decoder": no_decoder,
}


def ours(path, given_texts, given_ids):
    done = subprocess.run([BUILD / "tokenizer_runner", path], input=json.dumps({"texts": given_texts, "ids": given_ids}),
                          capture_output=True, text=True)
    if done.returncode == 2:
        raise ValueError(done.stderr)
    done.check_returncode()
    return json.loads(done.stdout)


def compare(path, theirs):
    given = texts()
    encoded = theirs.encode_batch(given)
    generator = random.Random(4)
    size = theirs.get_vocab_size()
    noise = [[generator.randrange(size + 3) for _ in range(generator.randint(1, 12))] for _ in range(500)]
    ids = [one.ids for one in encoded] + noise + [[], [size + 5], [2 ** 40]]
    got = ours(path, given, ids)
    for text, mine, plain, wanted in zip(given, got["ids"], got["plain"], encoded, strict=True):
        assert mine == wanted.ids, repr(text)
        assert plain == theirs.encode(text, add_special_tokens=False).ids, repr(text)
    for one, text, everything, pieces in zip(ids[:-1], got["texts"], got["all"], got["pieces"]):
        assert text == theirs.decode(one), one
        assert everything == theirs.decode(one, skip_special_tokens=False), one
        assert "".join(pieces) == text
    assert got["vocabulary"] == max(theirs.get_vocab().values()) + 1


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_same_ids_and_texts(tmp_path, make):
    tokenizer = make()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    compare(tmp_path, tokenizer)


def test_gpt2_from_vocab_and_merges(tmp_path):
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    state = json.loads(tokenizer.to_str())["model"]
    vocabulary = state["vocab"] | {"<|endoftext|>": len(state["vocab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in state["merges"])]
    (tmp_path / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    theirs = GPT2TokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")).backend_tokenizer
    compare(tmp_path, theirs)
    compare(tmp_path / "vocab.json", theirs)


@pytest.mark.parametrize("pattern", [LLAMA3, r"\p{L}+|\p{N}|\s|[^\s\p{L}\p{N}]", r"\d+|\D", r"\S+", r"\P{L}+|\P{N}"],
                         ids=["Llama 3", "classes", "digits", "not space", "not letters"])
def test_every_character_is_cut_as_there(tmp_path, pattern):
    tokenizer = byte_level(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    # Each character stands between letters that belong to the merges below.
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    given = ["".join(f"he{c}he" for c in every[begin:begin + 5000]) for begin in range(0, len(every), 5000)]
    state = json.loads(tokenizer.to_str())
    alphabet = state["model"]["vocab"]
    # The last byte of the character joins the letter after it, unless the text is cut between them.
    merges = [[token, "h"] for token in alphabet if len(token) == 1 and token != "h"]
    for left, right in merges:
        alphabet.setdefault(left + right, len(alphabet))
    state["model"]["merges"] = merges
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    theirs = Tokenizer.from_str(json.dumps(state))
    got = ours(tmp_path, given, [])
    for mine, wanted in zip(got["ids"], theirs.encode_batch(given), strict=True):
        assert mine == wanted.ids


def change(path, value):
    def apply(state):
        *outer, last = path
        for name in outer:
            state = state[name]
        state[last] = value
    return apply


REFUSED = {
    "another model": (change(["model", "type"], "Unigram"), 'type "Unigram" is not supported'),
    "another normalizer": (change(["normalizer"], {"type": "NFKC"}), "the normalizer 'NFKC'"),
    "another pre-tokenizer": (change(["pre_tokenizer"], {"type": "Whitespace"}), "the pre-tokenizer 'Whitespace'"),
    "another decoder": (change(["decoder"], {"type": "WordPiece"}), "the decoder 'WordPiece'"),
    "truncation": (change(["truncation"], {"max_length": 5}), "truncation .* set it to null"),
    "dropout": (change(["model", "dropout"], 0.1), "dropout makes the tokens random"),
    "a merge of nothing": (change(["model", "merges"], [["zq", "x"]]), "merge 0 .* needs the token"),
    "an id twice": (change(["model", "vocab", "!"], 5), "have the same id 5"),
    "an id below 0": (change(["model", "vocab", "!"], -1), "has the id -1"),
}


@pytest.mark.parametrize("apply, message", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(tmp_path, apply, message):
    state = json.loads(gpt2().to_str())
    apply(state)
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=f"tokenizer.json.*{message}"):
        ours(tmp_path, [], [])
