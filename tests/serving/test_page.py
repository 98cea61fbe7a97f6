"""A reader's view: Chromium draws a digit with mouse, finger and keys, and the page answers while it is drawn."""

import io

import numpy as np
import pytest
from headless import BROWSER, chromium, wait
from PIL import Image
from running import serving
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

pytest.importorskip("uvicorn", reason="no uvicorn here: the extra `serve` brings it")
pytestmark = [pytest.mark.slow, *BROWSER]
WIDTHS = (1300, 390)


@pytest.fixture(scope="module")
def address(network_file):
    with serving(network_file) as server:
        yield server.address


@pytest.fixture(scope="module")
def browser(address):
    with chromium("window-size=1300,1000") as found:
        yield found


@pytest.fixture
def page(browser, address):
    browser.get(address)
    return browser


def says(browser):
    return browser.find_element(By.ID, "said").text


def test_it_answers_while_a_digit_is_drawn(page):
    field = page.find_element(By.ID, "field")
    pen = ActionChains(page, duration=100).move_to_element_with_offset(field, 0, -90).click_and_hold()
    pen.move_by_offset(0, 60).perform()
    wait(page, 20).until(lambda b: says(b).startswith("This is"))  # the button is still down
    ActionChains(page, duration=100).move_by_offset(0, 60).move_by_offset(0, 60).release().perform()
    wait(page, 20).until(lambda b: says(b).startswith("This is 1"))
    pictures = page.find_elements(By.CSS_SELECTOR, "#pictures img")
    assert len(pictures) == 2
    assert all(each.get_property("naturalWidth") == 140 and each.get_attribute("alt") for each in pictures)
    page.find_element(By.ID, "clear").click()
    assert says(page) == "Nothing is drawn yet."


def test_keys_draw_too(page):
    field = page.find_element(By.ID, "field")
    field.send_keys(*[Keys.ARROW_UP] * 8, Keys.SPACE, *[Keys.ARROW_DOWN] * 16, Keys.SPACE)
    wait(page, 20).until(lambda b: says(b).startswith("This is 1"))
    field.send_keys(Keys.ESCAPE)
    assert says(page) == "Nothing is drawn yet."


def test_a_finger_draws_and_the_page_does_not_scroll(page):
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    box = page.find_element(By.ID, "field").rect
    x, y = box["x"] + box["width"] / 2, box["y"] + 60

    def touch(kind, *points):
        page.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [*points]})

    touch("touchStart", {"x": x, "y": y})
    for step in range(1, 12):
        touch("touchMove", {"x": x, "y": y + 18 * step})
    touch("touchEnd")
    wait(page, 20).until(lambda b: says(b).startswith("This is 1"))
    assert page.execute_script("return window.scrollY") == 0


def test_a_picture_is_taken_and_what_is_none_is_refused_with_a_sentence(page, tmp_path):
    photo = np.full((300, 400, 3), 210, np.uint8)
    photo[60:240, 190:215] = (30, 30, 120)
    buffer = io.BytesIO()
    Image.fromarray(photo).save(buffer, "JPEG")
    (tmp_path / "one.jpg").write_bytes(buffer.getvalue())
    (tmp_path / "none.png").write_bytes(b"no picture")
    page.find_element(By.ID, "file").send_keys(str(tmp_path / "one.jpg"))
    wait(page, 20).until(lambda b: says(b).startswith("This is 1"))
    page.find_element(By.ID, "file").send_keys(str(tmp_path / "none.png"))
    wait(page, 20).until(lambda b: "picture" in says(b) and "This is" not in says(b))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_light_and_dark_wide_and_narrow_nothing_is_cut_off(page, tmp_path, scheme, width):
    page.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page.find_element(By.ID, "field").send_keys(*[Keys.ARROW_UP] * 8, Keys.SPACE, *[Keys.ARROW_DOWN] * 16)
    wait(page, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, "#pictures img"))
    page.save_screenshot(tmp_path / f"{scheme}{width}.png")  # pytest keeps the last three folders
    assert page.execute_script("return document.documentElement.scrollWidth") <= width
    back = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    brightness = np.mean([int(n) for n in back[4:-1].split(",")])
    assert (brightness > 128) == (scheme == "light")
