"""Run the notebooks so that a repeat is byte-identical, and check that they are up to date.

    python tools/notebooks.py run   [PATHS...]   execute in place, save the outputs, clean as nbdev_clean does
    python tools/notebooks.py check [PATHS...]   execute, write nothing, fail where a saved notebook differs
"""
import argparse
import asyncio
import contextlib
import difflib
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Runs in each kernel before the first cell: widgets are numbered instead of named at random.
SETUP = ("import comm.base_comm, itertools, types; comm.base_comm.uuid = types.SimpleNamespace(uuid4=lambda "
         "count=itertools.count(): types.SimpleNamespace(hex=f'{next(count):032x}'))")


# Imported once, in the process that every kernel is forked from: torch and transformers take longer than most notebooks.
PRELOADED = ["torch", "torch.export._trace", "torch.utils.flop_counter", "transformers.models.auto.modeling_auto",
             "transformers.generation.utils", "transformers.modeling_layers", "networkx", "jsonschema", "rich.table",
             "nbformat", "nbclient", "execnb.nbio", "nbdev.clean", "ipykernel.kernelapp"]


class Forked:
    "A kernel as a fork of this process, for jupyter_client: as much of a subprocess.Popen as that asks for"
    stdin = stdout = stderr = returncode = None

    def __init__(self, command: list[str], env: dict, cwd: Path, **_):
        self.pid = os.fork()
        os.setpgid(self.pid, self.pid)  # of this process as well as of the kernel: a group of its own, whoever comes first
        if not self.pid:
            self._serve(command[command.index("ipykernel_launcher") + 1:], env, cwd)

    def _serve(self, arguments: list[str], env: dict, cwd: Path) -> None:
        try:
            os.chdir(cwd)
            os.environ.clear()
            os.environ.update(env)
            sys.argv = ["ipykernel_launcher.py", *arguments]
            sys.path[:] = [p for p in sys.path if p not in ("", str(ROOT/"tools"))]
            import jupyter_client.provisioning.local_provisioner as provisioner
            from ipykernel.kernelapp import IPKernelApp
            from jupyter_client import launch_kernel
            provisioner.launch_kernel = launch_kernel  # a notebook that starts a server has kernels of its own
            asyncio.set_event_loop(asyncio.new_event_loop())  # not the one that runs in this process's parent
            IPKernelApp.launch_instance([*arguments, f"--IPKernelApp.parent_handle={os.getppid()}"])
        finally:
            os._exit(0)

    def poll(self):
        with contextlib.suppress(ChildProcessError):  # it has been waited for
            if self.returncode is not None or not os.waitpid(self.pid, os.WNOHANG)[0]:
                return self.returncode
        self.returncode = 0
        return 0

    def wait(self):
        while self.poll() is None:
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    terminate = kill


def environment(scratch: str) -> dict[str, str]:
    "What the kernels inherit: nothing of this terminal, of the network, or of the user's own records"
    return dict(IN_TEST="1", PYTHONHASHSEED="0", PYTHONPATH=str(ROOT), COLUMNS="120", TERM="dumb", HF_HUB_OFFLINE="1",
                TRANSFORMERS_VERBOSITY="error",
                JUPYTER_PREFER_ENV_PATH="1", LM_PREDICTOR_DB=str(Path(scratch, "module_db")))


def find(paths: list[str]) -> list[Path]:
    "The notebooks at or below `paths`, default nbs/, without checkpoints and built pages"
    roots = [Path(p).resolve(strict=True) for p in paths] or [ROOT/"nbs"]
    found = [f for r in roots for f in ([r] if r.is_file() else sorted(r.rglob("*.ipynb")))]
    found = [f for f in found if not any(part[0] in "._" for part in f.relative_to(ROOT).parts)]
    return found or sys.exit(f"no notebooks at {', '.join(map(str, roots))}")


def skipped(source: str, flags: set[str]) -> bool:
    "Does nbdev_test skip this cell? `#| eval: false`, a flag of tst_flags, or a call of nbdev_export"
    directives = re.findall(r"^#\|\s*(.+?)\s*$", source, re.M)
    return "nbdev_export(" in source or any(d.split()[0] in flags or re.fullmatch(r"eval:\s*false", d, re.I) for d in directives)


def execute(path: Path, forked: bool = False) -> str:
    """The text of the notebook after a fresh run in its own directory, cleaned with the settings of settings.ini

    forked: in a kernel that has the heavy packages already, which is quicker.
    """
    import nbformat
    from execnb.nbio import dict2nb, nb2str
    from jupyter_client import launch_kernel
    from nbclient import NotebookClient
    from nbdev.clean import clean_nb
    from nbdev.config import get_config
    import jupyter_client.provisioning.local_provisioner as provisioner
    provisioner.launch_kernel = Forked if forked else launch_kernel

    cfg = get_config(path=path)
    flags = set(cfg.tst_flags.split())

    class Client(NotebookClient):
        def create_kernel_manager(self):
            "Sockets as files where the system has them: a free TCP port may be taken before the kernel binds it"
            manager = super().create_kernel_manager()
            if os.name == "posix":
                manager.transport, manager.connection_file = "ipc", str(Path(sockets, "kernel.json"))
                manager.ip = str(Path(sockets, "kernel"))
            return manager

        async def async_execute_cell(self, cell, *args, **kwargs):
            if cell.cell_type == "code" and skipped(cell.source, flags):
                return cell
            return await super().async_execute_cell(cell, *args, **kwargs)

    notebook = nbformat.read(path, as_version=4)
    if not any(c.cell_type != "code" and re.search(r"^(- )?skip_exec:\s*true", c.source, re.M | re.I) for c in notebook.cells):
        notebook.metadata.pop("widgets", None)
        with tempfile.TemporaryDirectory() as sockets:
            Client(notebook, timeout=600, record_timing=False, coalesce_streams=True, resources={"metadata": {"path": path.parent}},
                   extra_arguments=["--log-level=ERROR", f"--InteractiveShellApp.exec_lines={SETUP}"]).execute()
    if not any("application/vnd.jupyter.widget-view+json" in o.get("data", ()) for c in notebook.cells for o in c.get("outputs", ())):
        notebook.metadata.pop("widgets", None)  # the state of widgets that no output shows
    notebook = dict2nb(json.loads(nbformat.writes(notebook)))
    clean_nb(notebook, cfg.clear_all, cfg.allowed_metadata_keys.split(), cfg.allowed_cell_metadata_keys.split(), cfg.clean_ids)
    for place in (ROOT, sys.prefix):
        if any(f"{place}/" in json.dumps(c.get("outputs", [])) for c in notebook.cells):
            raise ValueError(f"an output shows a path of this machine, {place}/")
    return nb2str(notebook)


def difference(old: str, new: str, names: tuple[str, str], limit: int = 24) -> str:
    "The first lines of a unified diff, each cut to the width of a screen"
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), *names, n=1, lineterm=""))
    shown = [line if len(line) <= 160 else line[:157] + "..." for line in lines[:limit]]
    return "\n".join(shown + [f"... {len(lines) - limit} more lines"]*(len(lines) > limit))


def context():
    "How processes for notebooks are started: one for each, forked from one that has imported the heavy packages"
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found


def saves_outputs(path: Path) -> bool:
    "Has a saved notebook the output of any cell?"
    return any(cell.get("outputs") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"])


def run(files: list[Path], write: bool, jobs: int) -> int:
    "Execute the notebooks, `jobs` at a time; the number of those that failed or, unless `write`, differ"
    bad, start = {}, time.time()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(environment(scratch))
        sys.path.insert(0, str(ROOT))
        with ProcessPoolExecutor(jobs, mp_context=context(), max_tasks_per_child=1) as pool:
            pending = {pool.submit(timed, f): f for f in files}
            for number, done in enumerate(as_completed(pending), 1):
                path, name, verdict = pending[done], str(pending[done].relative_to(ROOT)), "ok"
                try:
                    text, seconds = done.result()
                    old = path.read_text(encoding="utf-8")
                    if text != old and write:
                        path.write_text(text, encoding="utf-8")
                        verdict = "written"
                    elif text != old:
                        bad[name] = difference(old, text, ("saved", "executed"))
                        verdict = "DIFFERS"
                    verdict += f", {seconds:.1f} s"
                except Exception as e:
                    bad[name], verdict = str(e), "FAILED"
                print(f"[{number}/{len(files)}] {name}: {verdict}", flush=True)
    for name, why in bad.items():
        print(f"\n=== {name}\n{why}", file=sys.stderr)
    print(f"{len(files) - len(bad)} of {len(files)} notebooks {'executed' if write else 'reproduce'} in {time.time() - start:.0f} s"
          + "".join(f"\n  not {name}" for name in sorted(bad)))
    return len(bad)


def timed(path: Path) -> tuple[str, float]:
    "`execute` and its seconds; a plain exception, because nbclient's own do not pickle"
    start = time.time()
    if hasattr(os, "fork"):
        try:
            return execute(path, forked=True), time.time() - start
        except Exception:  # it forks processes itself, say; what counts is what it does in a process of its own
            pass
    try:
        return execute(path), time.time() - start
    except Exception as e:
        raise RuntimeError(re.sub(r"\x1b\[[0-9;]*m", "", str(e))) from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "check"])
    parser.add_argument("paths", nargs="*", help="notebooks or directories; all of nbs/ by default")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time (default 2)")
    parser.add_argument("--saved", action="store_true", help="only notebooks that have saved outputs: nbdev_test runs the others as well")
    args = parser.parse_intermixed_args()
    files = [f for f in find(args.paths) if not args.saved or saves_outputs(f)]
    return int(run(files, args.command == "run", args.jobs) > 0)


if __name__ == "__main__":
    sys.exit(main())
