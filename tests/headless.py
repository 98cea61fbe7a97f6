"""A browser without a window, for the tests that look at pages as a reader sees them."""

import shutil
import socket
import urllib.request
from contextlib import contextmanager

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
BROWSER = (  # marks of a test that opens one
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium here (Debian: chromium)"),
    pytest.mark.skipif(not DRIVER, reason="no chromedriver here (Debian: chromium-driver)"),
)
FLAGS = (
    "headless=new",
    "no-sandbox",  # it cannot start as root, as in a container, with it
    "disable-gpu",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
)


@contextmanager
def chromium(*flags, **capabilities):
    """Yield a browser, which ends with the block. flags: beside `FLAGS`. capabilities: see Selenium."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for name, value in capabilities.items():
        options.set_capability(f"goog:{name}", value)
    for flag in (*FLAGS, *flags):
        options.add_argument(f"--{flag}")
    browser = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


def wait(browser, seconds):
    return WebDriverWait(browser, seconds, poll_frequency=0.5)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def answers(port, token):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status?token={token}", timeout=5):
            return True
    except OSError:
        return False
