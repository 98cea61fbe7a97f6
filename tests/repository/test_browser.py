"""A reader's view: JupyterLab in a browser runs a chapter, and a slider redraws its figure."""

import json
import os
import secrets
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from headless import BROWSER, answers, chromium, free_port, wait
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    *BROWSER,
]

READY = "return window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status"
RUN_ALL = """
window.finished = null;
window.jupyterapp.commands.execute("notebook:run-all-cells").then(
    ok => { window.finished = ok ? "ok" : "a cell failed"; },
    error => { window.finished = String(error); });
"""
ERRORS = """
return window.jupyterapp.shell.currentWidget.content.widgets
    .flatMap(cell => cell.model.outputs?.toJSON() ?? [])
    .filter(output => output.output_type === "error")
    .map(output => output.ename + ": " + output.evalue);
"""
# A slider in the same output as a widget that shows a picture.
SLIDER = (
    "//*[contains(@class, 'jp-OutputArea-output')][.//img[contains(@class, 'widget-image')]]"
    "//*[contains(@class, 'noUi-handle')]"
)
FIGURE = "./ancestor::*[contains(@class, 'jp-OutputArea-output')]//img"
PICTURE = """
const [image, done] = arguments;
fetch(image.src).then(r => r.blob()).then(blob => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(blob);
}).catch(() => done(null));  // replaced while it was read
"""


@pytest.mark.parametrize("name", ["11_train_in_one_kernel.ipynb"])
def test_a_slider_redraws_its_figure(name, tmp_path):
    flags = "disable-quic", "disable-sync", "window-size=1280,1000", f"user-data-dir={tmp_path / 'browser'}"
    with jupyterlab(tmp_path) as address, chromium(*flags) as browser:
        try:
            browser.get(address.format(name=name))
            wait(browser, 120).until(lambda b: b.execute_script(READY) == "idle")
            browser.execute_script(RUN_ALL)
            wait(browser, 540).until(lambda b: b.execute_script("return window.finished"))
            assert browser.execute_script("return window.finished") == "ok", browser.execute_script(ERRORS)

            handle = wait(browser, 30).until(lambda b: b.find_element(By.XPATH, SLIDER))
            figure = handle.find_element(By.XPATH, FIGURE)
            browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", handle)
            before = wait(browser, 30).until(lambda b: b.execute_async_script(PICTURE, figure))
            browser.save_screenshot(tmp_path / "before.png")
            move(handle)
            wait(browser, 30).until(lambda b: b.execute_async_script(PICTURE, figure) not in (None, before))
            assert figure.get_property("naturalWidth") > 0
        finally:
            browser.save_screenshot(tmp_path / "after.png")  # pytest keeps the last three folders


def move(handle):
    at_the_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
    handle.send_keys(Keys.ARROW_LEFT if at_the_end else Keys.ARROW_RIGHT)


@contextmanager
def jupyterlab(folder):
    """Serve a copy of the notebooks, with no settings of this user's; yield an address."""
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    settings = {
        # All cells in the page, not only those in view: a test scrolls worse than a reader.
        "notebook-extension/tracker": {"windowingMode": "none"},
        "apputils-extension/notification": {"fetchNews": "false"},
    }
    for name, values in settings.items():
        file = folder / "config/lab/user-settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))

    port, token = free_port(), secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    options = {
        "ServerApp.ip": "127.0.0.1",
        "ServerApp.port": port,
        "ServerApp.port_retries": 0,
        "ServerApp.root_dir": folder / "notebooks",
        "LabApp.expose_app_in_browser": True,  # as window.jupyterapp
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
    }
    command += [f"--{name}={value}" for name, value in options.items()]
    places = {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_TOKEN": token,
    }
    with open(folder / "server.log", "w") as log:
        server = subprocess.Popen(command, env=os.environ | places, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait(server, 60).until(lambda s: s.poll() is not None or answers(port, token))
            assert server.poll() is None, (folder / "server.log").read_text()
            yield f"http://127.0.0.1:{port}/lab/tree/{{name}}?token={token}"
        finally:
            server.terminate()  # its kernels go with it
            server.wait(30)
