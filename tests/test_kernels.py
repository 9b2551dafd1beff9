"The execution kernels: a model's accelerated functions as single operators, in a record beside that of its source"
import json
import shutil

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from lm_predictor.app.cli.main import main  # noqa: E402
from lm_predictor.models.sources.loading import load_config  # noqa: E402
from lm_predictor.models.matching import stored_records, symbol_values  # noqa: E402
from lm_predictor.models.config.validation import ModelError  # noqa: E402
from lm_predictor.obtain.analyze import analyze  # noqa: E402
from lm_predictor.obtain.find import find  # noqa: E402
from lm_predictor.records.storage.database import Database, shipped_directory  # noqa: E402
from lm_predictor.records.storage.files import model_path, read_json  # noqa: E402
from lm_predictor.verification.functions import HELD  # noqa: E402
from lm_predictor.verification.prove import prove  # noqa: E402

SMALL, LARGE = "state-spaces/mamba-130m-hf", "state-spaces/mamba-2.8b-hf"


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    return Database(tmp_path_factory.mktemp("own"), shipped_directory())


@pytest.fixture(scope="module")
def fast(db):
    "The record of Mamba with its accelerated functions"
    return find(load_config(SMALL)[1], db, accelerated=True).record


def test_mamba_moves_what_its_kernels_move(db, fast):
    """A prompt of 8192 tokens: 964 launches, and 87 GB but for two things that Mamba's kernels and types make it move.

    The scan writes its output before the gate as well (5120 channels of 2 bytes), and from the second of 64 layers on the
    residual stream of 2560 numbers is read twice in float32, not in 2 bytes.
    """
    cost = analyze(LARGE, db)
    run, flash = (cost.at(seq_len=8192, execution=e) for e in ("kernels", "flash"))
    moved = lambda run: run.totals.read_bytes + run.totals.write_bytes
    assert sum(k.count for k in run.kernels) < 1000 and moved(flash) > 10 * moved(run)
    gates, residuals = 64 * 8192 * 5120 * 2, 63 * 8192 * 2560 * 2 * 2
    assert moved(run) - gates - residuals == pytest.approx(87e9, rel=0.01)
    [scan] = [k for k in run.kernels if k.operation == "selective_scan_fn" and k.count == 63]
    states = 5120 * 16 * (8 * 4 - 4)  # a pair of float32 after each of four 2048 tokens; the last state is a result
    assert scan.inside_bytes == 8192 * 5120 * 2 + states
    assert run.notes == () and run.totals.weight_bytes == flash.totals.weight_bytes
    step = cost.at(cache_len=8192, execution="kernels")
    assert step.totals.kv_cache_bytes == cost.at(cache_len=8192).totals.kv_cache_bytes


def test_its_record_stands_beside_the_one_of_its_source(db, fast):
    assert fast.functions == (
        "causal_conv1d_fn", "causal_conv1d_update", "selective_scan_fn", "selective_state_update")
    assert fast.id not in {r.id for _, r in stored_records("mamba", db)}
    assert fast.id in {r.id for _, r in stored_records("mamba", db, accelerated=True)}
    source = find(load_config(SMALL)[1], db).record
    numbers = [r.parameters.evaluate(symbol_values(r, load_config(SMALL)[1])) for r in (source, fast)]
    assert source.functions == () and numbers == [129_135_360] * 2
    mixer = db.get("transformers.models.mamba.modeling_mamba.MambaMixer", model=fast.id)
    assert mixer.variant(fast.id).accelerated and not db.get(mixer.class_name, model=source.id).variants[0].accelerated


def test_it_is_verified(db, fast):
    "Every road but torch's count of the functions themselves, and a run of the source's own functions"
    name, config = load_config(SMALL)
    outcome = prove(model_path(db.home(fast.id), fast.id), db.overlay, db.shipped, name, config)
    assert [c for c in outcome.checks if not c.ok] == []
    assert {"prefill", "decode", "extend"} <= {c.part for c in outcome.checks if c.what == HELD}
    assert all(c.ok for rows in outcome.classes.values() for c in rows)


def test_what_is_missing_is_said(db, fast, tmp_path):
    "Nothing is traced: with one of the two records only, the report says which, or what to ask for"
    config, bare, other = load_config(SMALL)[1], Database(tmp_path / "a", tmp_path / "a"), tmp_path / "b"
    for place, record in ((bare.shipped, find(config, db).record), (other, fast)):
        (place / "models").mkdir(parents=True)
        shutil.copy(model_path(db.home(record.id), record.id), place / "models")
    run = analyze(SMALL, bare, trace=False).at(seq_len=64, execution="kernels")
    [said] = [n for n in run.notes if "accelerated" in n]
    assert said.startswith("these are the figures of the source without its accelerated functions: mamba: no stored record")
    alone = analyze(SMALL, Database(other, other), trace=False)
    assert alone.at(seq_len=64, execution="kernels").totals.flops > 0
    with pytest.raises(ModelError, match="only its source with the accelerated functions is recorded, which flash does"):
        alone.at(seq_len=64, execution="flash")


def test_a_model_without_functions_is_flash(capsys):
    "And its record does not know the word"
    def printed(execution):
        assert main(["analyze", "gpt2", "--seq-len", "64", "--execution", execution, "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)
    kernels, flash = printed("kernels"), printed("flash")
    assert kernels.pop("execution") == "kernels" and flash.pop("execution") == "flash" and kernels == flash
    [(path, _)] = stored_records("gpt2", Database(shipped_directory(), shipped_directory()))
    assert "functions" not in read_json(path)
