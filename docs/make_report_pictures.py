"""Make the pictures of a check's report: `python docs/make_report_pictures.py`. Needs a Chromium of the system."""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from vlmrm_gym.tools.cli.check import check

DOCS = Path(__file__).parent
SIZES = {"wide": (1280, 2300), "phone": (390, 1500)}


def main() -> None:
    """Check one reward, and show its report in both widths."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        out = Path(folder) / "check"
        check("VLMRM/Humanoid-hands-on-hips-v0", camera=["paper", "front-side"], out=out)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        for width, (pixels, height) in SIZES.items():
            page = browser.new_page(viewport={"width": pixels, "height": height})
            page.goto((out / "report.html").as_uri())
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            picture.save(DOCS / f"report_{width}.jpg", quality=80, optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
