"""How soon do the explorer's numbers and pictures follow a slider?

    python benchmarks/explorer.py            # the widget alone: from the value being set to all of its HTML being new
    python benchmarks/explorer.py --browser  # the page of `lm-predictor explore` in chromium: from the key to the new numbers on it

Every model is chosen as a user does; then each slider goes over its whole range and back, in every execution. The first
time that a slider crosses from one case of a record to another (from prefill to decode, say) its kernels are found, so
these steps count too: they are the worst ones. Besides the time that passes, the processor time of this process is given:
what it would be on a machine with nothing else to do.
"""
import argparse
import sys
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
AIM_MS = 100
MODELS = ("Qwen/Qwen2.5-0.5B", "meta-llama/Llama-2-7b-hf", "Qwen/Qwen3-30B-A3B", "google/gemma-3-27b-it", "deepseek-ai/DeepSeek-V3",
          "ai21labs/Jamba-v0.1", "RWKV/rwkv-4-169m-pile", "Qwen/Qwen3-Next-80B-A3B-Instruct")  # the last three have the most operators
SLIDERS = ("batch_size", "seq_len", "cache_len")


def milliseconds(call) -> tuple[float, float]:
    "What passes, and what this process works, while a function runs"
    start, worked = time.perf_counter(), time.process_time()
    call()
    return 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - worked)


def dragged(page) -> list[tuple]:
    "Milliseconds of each step of each slider, over its range and back to where it stood"
    found = []
    for name in SLIDERS:
        slider = page.controls[name]
        at, there = slider.value, slider.stops
        for value in (*there, *reversed(there), at):
            if value != slider.value:
                found.append(milliseconds(lambda: setattr(slider, "value", value)))
    return found


def figures(found: list[tuple]) -> str:
    return "   ".join(f"{median(column):6.1f} {sorted(column)[int(0.99 * len(column))]:6.1f} {max(column):6.1f}" for column in zip(*found))


def widget() -> list[tuple]:
    "Print what the widget takes, model by model; gives every step"
    from lm_predictor.app.explorer.widget import explore
    page, every = explore(), []
    print(f"{'ms':34} {'passed':>27} {'processor time':>22}\n{'model':34} {'steps':>5} " + "   ".join([f"{'median':>6} {'99 %':>6} {'worst':>6}"] * 2))
    for model in MODELS:
        page.controls["model"].value, found = model, []
        for execution in ("engine", "flash", "eager"):
            page.controls["execution"].value = execution
            found += dragged(page)
        page.controls["execution"].value = "engine"
        every += found
        print(f"{model:34} {len(found):5} {figures(found)}", flush=True)
    device = [milliseconds(lambda: setattr(page.controls["hardware"], "value", value)) for _, value in page.controls["hardware"].options]
    print(f"{'all':34} {len(every):5} {figures(every)}\n{'choosing a device (draws its roofs)':34} {len(device):4} {figures(device)}")
    print(f"{'the two pictures by matplotlib':34} {len(drawn := by_matplotlib()):5} {figures(drawn)}")
    return every


def by_matplotlib() -> list[tuple]:
    "Milliseconds of the steps of a slider, were the roofline and the bars drawn by matplotlib, what stands still kept"
    from lm_predictor.obtain.analyze import analyze
    from lm_predictor.app.plots.style import Drawing
    from lm_predictor.app.plots.breakdown import plot_breakdown
    from lm_predictor.app.plots.roofline import plot_roofline
    cost, sheets = analyze("meta-llama/Llama-2-7b-hf"), [Drawing(figsize=(6.8, 4.4)) for _ in range(2)]
    (above, below), found = [sheet.add_subplot() for sheet in sheets], []
    for cached in range(1024, 1024 + 24 * 64, 64):
        run = cost.at(batch_size=8, seq_len=1, cache_len=cached).on("h100")
        found.append(milliseconds(lambda: (plot_roofline(run, above), plot_breakdown(run, ax=below), [sheet.png() for sheet in sheets])))
    return found[4:]


def browser() -> list[tuple]:
    "Print what the page takes in a browser; gives every step"
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from browser import opened
    every = []
    with opened("llama-2-7b", "--hardware", "h100") as page:
        for model in MODELS:
            page.choose("model", model, f"{model} ")
            found = [(page.step(name, key),) for name in ("new tokens", "cached tokens") for key in ["ArrowRight"] * 12 + ["ArrowLeft"] * 12]
            every += found
            print(f"{model:34} {len(found):5} {figures(found)}", flush=True)
    return every


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--browser", action="store_true", help="the page in chromium instead of the widget alone")
    every = browser() if p.parse_args().browser else widget()
    for what, column in zip(("passed", "processor time"), zip(*every)):
        late = sum(x >= AIM_MS for x in column)
        print(f"{what}: median {median(column):.1f} ms, worst {max(column):.1f} ms; the aim of under {AIM_MS} ms is {f'MISSED by {late} of {len(column)} steps' if late else 'met by every step'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
