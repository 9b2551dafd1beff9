"The shipped records that the slower tests go through: the first of each model type with a preset. `verify --all` has every one."
from lm_predictor.models.sources.hub import presets
from lm_predictor.records.storage.database import shipped_directory
from lm_predictor.records.storage.files import model_id, model_paths

_OF = {model_id(p).rpartition("-")[0]: p for p in reversed(model_paths(shipped_directory()))}
PATHS = [_OF[t] for t in sorted({p["config"]["model_type"] for p in presets().values()} & set(_OF))]
IDS = {model_id(p) for p in PATHS}
