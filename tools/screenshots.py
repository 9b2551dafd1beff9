"""Take the picture of the explorer's page that the documentation shows, in a real browser.

    python tools/screenshots.py [DIRECTORY]   default nbs/images; needs the dev extra and chromium
"""
import argparse
import io
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from browser import chromium, opened  # noqa: E402

COLOURS = 256  # of the palette: what is drawn is flat


def take(page, path: Path) -> None:
    "Save the explorer on a page as a PNG of few bytes"
    page.page.mouse.move(0, 0)
    picture = Image.open(io.BytesIO(page.page.locator(".lmp").screenshot())).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {picture.width} x {picture.height}, {path.stat().st_size:,} bytes, {page.command()}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "nbs" / "images")
    directory = parser.parse_args().directory
    if not chromium():
        print("no chromium is installed here; on Debian: apt-get install chromium", file=sys.stderr)
        return 1
    directory.mkdir(parents=True, exist_ok=True)
    with opened("llama-3.1-8b", "--hardware", "h100", width=1320, height=1000) as page:
        page.move("new tokens", 1)
        page.move("cached tokens", 4096)
        page.move("batch", 32)
        take(page, directory / "explorer.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
