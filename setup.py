"Packaging: everything is read from settings.ini, the one place nbdev also reads."
import shutil
import sys
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

cfg = ConfigParser(delimiters=["="], interpolation=None)
cfg.read(Path(__file__).parent / "settings.ini", encoding="utf-8")
cfg = cfg["DEFAULT"]
extras = {key.removesuffix("_requirements"): cfg[key].split() for key in cfg if key.endswith("_requirements")}


class PackedRecords(build_py):
    """Class records are text in the repository, where people read and compare them, and a model's record is a file;
    where they are installed there is one file for each module, and one for each type of model.

    nbdev's index of all functions (a megabyte) is for the docs, which are built from the repository: what is installed
    keeps its settings alone.
    """

    def run(self):
        if not self.editable_mode:  # what an earlier build left is not what the repository holds now
            shutil.rmtree(Path(self.build_lib, "lm_predictor"), ignore_errors=True)
        super().run()
        if not self.editable_mode:
            index, made = Path(self.build_lib, "lm_predictor", "_modidx.py"), {}
            exec(index.read_text(encoding="utf-8"), made)
            index.write_text(f"d = {made['d'] | {'syms': {}}}\n", encoding="utf-8")
            sys.dont_write_bytecode = True  # the build directory is what ships
            sys.path.insert(0, self.build_lib)
            from lm_predictor.records.storage.files import pack_classes, pack_models
            for pack in pack_classes, pack_models:
                pack(Path(self.build_lib, "lm_predictor", "module_db"))


setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"], author=cfg["author"],
    author_email=cfg["author_email"], license="Apache-2.0", url=cfg["git_url"], keywords=cfg["keywords"].split(),
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown", python_requires=f">={cfg['min_python']}",
    packages=find_namespace_packages(include=["lm_predictor*"]), include_package_data=True,
    package_data={"lm_predictor": [
        "module_db/*.json", "module_db/presets/*.json", "module_db/models/*.json.xz",
        "module_db/vision/*.json.xz", "hardware/*.json",
        "hardware/calibrated/*.json", "prompts/*.md", "library/*.html"
    ]},
    cmdclass={"build_py": PackedRecords},
    install_requires=cfg["requirements"].split(), extras_require=extras,
    entry_points={"console_scripts": cfg["console_scripts"].split(), "nbdev": [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
                  "pytest11": [f"{cfg['lib_path']}.library.pytest_plugin={cfg['lib_path']}.library.pytest_plugin"]},  # -p MODULE is the same plugin
)
