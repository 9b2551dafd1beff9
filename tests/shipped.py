"The shipped records that the slower tests go through: the first of each model type with a preset. `verify --all` has every one."
from functools import cache

from lm_predictor.models.matching import stored_records
from lm_predictor.models.sources.hub import presets
from lm_predictor.records.model import record_from_json
from lm_predictor.records.storage.database import Database, shipped_directory
from lm_predictor.records.storage.files import model_id, model_paths, read_record

DB = Database(overlay=shipped_directory(), shipped=shipped_directory())
_OF = {model_id(p).rpartition("-")[0]: p for p in reversed(model_paths(shipped_directory()))}
PATHS = [_OF[t] for t in sorted({p["config"]["model_type"] for p in presets().values()} & set(_OF))]
IDS = {model_id(p) for p in PATHS}


EVERY_ID = [model_id(p) for p in model_paths(shipped_directory())]


@cache
def subjects_of(model_type: str):
    "The records of a type with their configs, read once; needs transformers"
    from lm_predictor.verification.prove import subjects
    return subjects(DB, model_type)


def subject_of(record_id: str):
    "A record with its configs"
    return next(s for s in subjects_of(record_id.rpartition("-")[0]) if s.record.id == record_id)


@cache
def every_record():
    "All records, read once"
    return [record_from_json(read_record(p)) for p in model_paths(shipped_directory())]


@cache
def records_of(model_type: str):
    "The records of a type without accelerated functions, read once"
    return [r for _, r in stored_records(model_type, DB)]
