"The shipped records that the slower tests go through: the first of each model type with a preset. `verify --all` has every one."
from functools import cache

from lm_predictor.models.matching import stored_records
from lm_predictor.models.sources.hub import presets
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_id, model_paths

DB = Database(overlay=shipped_directory(), shipped=shipped_directory())
_OF = {model_id(p).rpartition("-")[0]: p for p in reversed(model_paths(shipped_directory()))}
PATHS = [_OF[t] for t in sorted({p["config"]["model_type"] for p in presets().values()} & set(_OF))]
IDS = {model_id(p) for p in PATHS}


@cache
def every_subject():
    "All records with their configs, read once for all files of tests; needs transformers"
    from lm_predictor.verification.prove import subjects
    return subjects(DB)


@cache
def records_of(model_type: str):
    "The records of a type without accelerated functions, read once"
    return [r for _, r in stored_records(model_type, DB)]
