"Models with modeling code of their own: refused unless trusted; then it is that code which is traced."
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

CONFIG = {"model_type": "tiny_gate", "hidden_size": 48, "num_hidden_layers": 3, "inner_size": 112, "vocab_size": 1000, "tie_word_embeddings": False,
          "auto_map": {"AutoConfig": "configuration_tiny.TinyGateConfig", "AutoModelForCausalLM": "modeling_tiny.TinyGateForCausalLM"}}
CONFIGURATION = '''
from transformers import PreTrainedConfig

class TinyGateConfig(PreTrainedConfig):
    model_type = "tiny_gate"

    def __init__(self, hidden_size=32, num_hidden_layers=2, inner_size=64, vocab_size=500, **kwargs):
        self.hidden_size, self.num_hidden_layers, self.inner_size, self.vocab_size = hidden_size, num_hidden_layers, inner_size, vocab_size
        super().__init__(**kwargs)
'''
MODELING = '''
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from .configuration_tiny import TinyGateConfig

class TinyGate(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up = nn.Linear(config.hidden_size, config.inner_size, bias=False)
        self.down = nn.Linear(config.inner_size, config.hidden_size, bias=False)

    def forward(self, x):
        y = self.up(x)
        y = y * torch.sigmoid(y)
        return x + self.down(y)

class TinyGateForCausalLM(PreTrainedModel):
    config_class = TinyGateConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TinyGate(config) for _ in range(config.num_hidden_layers))
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, use_cache=False, logits_to_keep=0, **kwargs):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return CausalLMOutputWithPast(logits=self.head(x[:, -logits_to_keep:]))
'''
T, H, I, V, L = 16, 48, 112, 1000, 3
MATMUL = L * 2 * (2 * T * H * I) + 2 * H * V  # up and down of every token in every layer, the head of the last token


def repository(path: Path, modeling: str = MODELING, **config) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    (path / "configuration_tiny.py").write_text(CONFIGURATION)
    (path / "modeling_tiny.py").write_text(modeling)
    return path


@pytest.fixture
def shell(tmp_path):
    "Runs the command line in a fresh process, with an empty database and an empty cache of Hugging Face"
    def run(*argv):
        env = os.environ | {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "LM_PREDICTOR_DB": str(tmp_path / "db"),
                            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])}
        env.pop("HF_MODULES_CACHE", None)
        return subprocess.run([sys.executable, "-c", "import sys; from lm_predictor.app.cli.main import main; sys.exit(main(sys.argv[1:]))", *map(str, argv)],
                              env=env, capture_output=True, text=True, timeout=120)
    return run


def matmul_flops(done) -> int:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["totals"]["matmul_flops"]


def refused(done) -> str:
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    return done.stderr


@pytest.mark.slow
def test_directory(shell, tmp_path):
    "Refused; run on request; stored; traced again when the code changes"
    here = repository(tmp_path / "tiny repo-1.5")
    command = ("analyze", here, "--seq-len", T, "--format", "json")
    assert "(modeling_tiny.TinyGateForCausalLM) is run only with --trust-remote-code" in refused(shell(*command))
    assert not (tmp_path / "db").exists() and not (tmp_path / "hf" / "modules").exists()
    first = shell(*command, "--trust-remote-code")
    assert matmul_flops(first) == MATMUL
    plain = shell(*command, "--trust-remote-code", "--execution", "flash")  # in `engine` it is part of the product before it
    gate = next(k for k in json.loads(plain.stdout)["kernels"] if "sigmoid" in k["operation"])
    assert gate["source"].endswith("/modeling_tiny.py:16") and gate["code"] == "y = y * torch.sigmoid(y)" and gate["count"] == L
    assert gate["class_name"].endswith(".modeling_tiny.TinyGate")
    records = lambda: sorted(p.name for p in (tmp_path / "db" / "models").iterdir())
    stored = records()
    assert shell(*command, "--trust-remote-code").stdout == first.stdout and records() == stored
    repository(here, MODELING.replace("y = self.up(x)", "y = self.up(x) + self.up(x)"))
    assert matmul_flops(shell(*command, "--trust-remote-code")) == MATMUL + L * 2 * T * H * I
    assert len(records()) == 2 and "is run only with" in refused(shell(*command))


def test_hub_id(shell, tmp_path):
    "The same for a repository of the hub that was downloaded before"
    cached = tmp_path / "hf" / "hub" / "models--acme--tiny"
    repository(cached / "snapshots" / ("a1" * 20))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("a1" * 20)
    command = ("analyze", "acme/tiny", "--seq-len", T, "--format", "json")
    assert "is run only with --trust-remote-code" in refused(shell(*command))
    assert matmul_flops(shell(*command, "--trust-remote-code")) == MATMUL


def test_native_type(shell, tmp_path):
    "A type that transformers has: its own class without the flag, with a note; the repository's with it"
    here = repository(tmp_path / "r", model_type="llama", hidden_size=96, num_attention_heads=4, num_key_value_heads=4, intermediate_size=112, num_hidden_layers=3)
    native = shell("analyze", here, "--seq-len", T, "--format", "json")
    assert json.loads(native.stdout)["class_name"].endswith("LlamaForCausalLM") and "which was not run" in native.stdout
    own = shell("analyze", here, "--seq-len", T, "--format", "json", "--trust-remote-code")
    assert json.loads(own.stdout)["class_name"].endswith("TinyGateForCausalLM"), own.stderr
    again = shell("analyze", here, "--seq-len", T, "--format", "json")
    assert again.stdout == native.stdout


@pytest.mark.parametrize("modeling, reason", [
    (MODELING + "import no_such_package_at_all\n", "the package no_such_package_at_all, which is not installed"),
    (MODELING.replace("class TinyGateForCausalLM", "class Other"), "has no attribute 'TinyGateForCausalLM'"), ("x = (", "SyntaxError")])
def test_broken_code(modeling, reason, shell, tmp_path):
    here = repository(tmp_path / "r", modeling)
    error = refused(shell("analyze", here, "--trust-remote-code"))
    assert reason in error and str(here) in error and "Traceback" not in error


def test_code_that_is_not_there(shell, tmp_path):
    here = repository(tmp_path / "r")
    (here / "modeling_tiny.py").unlink()
    assert "has no modeling_tiny.py, which its config's auto_map names" in refused(shell("analyze", here, "--trust-remote-code"))


IN_FORWARD = "        y = self.up(x)\n"


@pytest.mark.parametrize("modeling, line, said", [
    (MODELING + "1/0\n", MODELING.count("\n") + 1, "ZeroDivisionError: division by zero"),
    (MODELING.replace(IN_FORWARD, IN_FORWARD + "        y = y + self.nothing\n"), 16, "AttributeError: 'TinyGate' object has no attribute 'nothing'"),
    (MODELING + "import sys; sys.exit('bye')\n", MODELING.count("\n") + 1, "this code ended the process with sys.exit('bye')"),
    (MODELING.replace(IN_FORWARD, "        raise SystemExit\n"), 15, "this code ended the process with sys.exit(None)")])
def test_errors_name_file_and_line(modeling, line, said, shell, tmp_path):
    here = repository(tmp_path / "r", modeling)
    error = refused(shell("analyze", here, "--trust-remote-code"))
    assert f"/modeling_tiny.py:{line}: {said}" in error


def test_a_class_is_one_after_an_edit(shell, tmp_path):
    "`module TinyGate` is the class as its file is now"
    here = repository(tmp_path / "r")
    command = ("analyze", here, "--seq-len", T, "--trust-remote-code")
    assert shell(*command).returncode == 0
    before = shell("module", "TinyGate")
    repository(here, MODELING.replace("y = self.up(x)", "y = self.up(x) + self.up(x)"))
    assert shell(*command).returncode == 0
    after = shell("module", "TinyGate")
    assert before.returncode == after.returncode == 0 and "self.up(x) + self.up(x)" in after.stdout and "self.up(x) + self.up(x)" not in before.stdout
    named = shell("module", "TinyGate", "--model", here, "--trust-remote-code")
    assert named.returncode == 0 and named.stdout == after.stdout
    assert "is run only with --trust-remote-code" in refused(shell("module", "TinyGate", "--model", here))
    assert shell("expand", "TinyGate", "--model", here, "--trust-remote-code").returncode == 0
    told = shell("audit", "TinyGate", "--model", here, "--trust-remote-code", "--into", tmp_path)
    assert told.returncode == 0 and "trust_remote_code=True" in next(tmp_path.glob("*TinyGate.ipynb")).read_text(), told.stderr
