__version__ = "0.1.0"

_HOMES = {"analyze": "model", "Workload": "model", "Database": "database", "load_hardware": "hardware", "compute_flops": "registry", "compute_memory": "registry"}  # loaded when asked for
__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError(f"module 'lm_predictor' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module
    return getattr(import_module(f"lm_predictor.{_HOMES[name]}"), name)
