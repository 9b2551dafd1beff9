__version__ = "0.1.0"

_HOMES = {  # where each name is defined; loaded when asked for
    "analyze": "obtain.analyze", "Workload": "cost.workload", "Database": "records.storage.database", "load_hardware": "timing.hardware",
    "compute_flops": "cost.tree.registry", "compute_memory": "cost.tree.registry", "diff": "library.comparison.diff",
    "assert_cost": "library.comparison.expect"}
__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'lm_predictor' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module
    return getattr(import_module(f"lm_predictor.{_HOMES[name]}"), name)


def __dir__():
    return sorted({*globals(), *__all__})
