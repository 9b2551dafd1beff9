"The light core: what `import lm_predictor` and `analyze` of a shipped preset must not load."
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "sympy", "matplotlib", "anthropic", "jsonschema", "numpy")


@pytest.mark.parametrize("code", [
    "import lm_predictor",
    "from lm_predictor.app.cli.main import main; assert main(['analyze', 'meta-llama/Llama-2-7b-hf']) == 0",
    "from lm_predictor.app.cli.main import main; assert main(['analyze', 'gpt2', '--hardware', 'h100', '--execution', 'eager', '--format', 'json']) == 0",
    "from lm_predictor.app.cli.main import main; assert main(['inspect', 'mixtral-8x7b']) == 0",
    "from lm_predictor.app.cli.main import main; assert main(['module', 'LlamaMLP']) == 0",
    "from lm_predictor.app.cli.main import main; assert main(['expand', 'LlamaMLP']) == 0",
    "from lm_predictor.app.cli.main import main; assert main(['diff', 'llama-2-7b', 'llama-3.1-8b', '--hardware', 'h100', '--format', 'json']) == 0",
    "from lm_predictor.app.cli.main import main; assert main(['diff', 'LlamaMLP', 'Qwen3MLP', '--model', 'llama-2-7b']) == 0",
    "from lm_predictor import assert_cost; assert_cost('qwen3-8b', at={'cache_len': 99}, at_most={'kernels': 400})",
    "from lm_predictor import analyze; analyze('qwen3-8b').at(batch_size=8, seq_len=1, cache_len=4096).on('h200').time_s",
])
def test_loads_nothing_heavy(code):
    check = f"{code}\nimport sys; found = [m for m in {HEAVY!r} if m in sys.modules]; assert not found, found"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr


def test_help_loads_no_model():
    "The help of a command is read before anything is looked up"
    code = "import sys\nfrom lm_predictor.app.cli.main import main\nassert main(['analyze', '--help']) == 0\n" \
           "found = [m for m in sys.modules if m.startswith('lm_predictor.') and m.split('.')[1] not in ('app', 'records')]\nassert not found, found"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "usage: lm-predictor analyze" in done.stdout, done.stderr
