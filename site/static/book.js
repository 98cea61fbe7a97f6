// What scrolls by itself can be reached with the keyboard: a tab stop for what is too wide, and for nothing else.
const addTabStops = () => {
    for (const each of document.querySelectorAll(".bd-article :is(pre, mjx-container[display], .output, .pst-scrollable-table-container)")) {
        if (each.scrollWidth > each.clientWidth) {
            each.tabIndex = 0;
        } else {
            each.removeAttribute("tabindex");
        }
    }
};
window.addEventListener("load", () => {
    (window.MathJax?.startup?.promise ?? Promise.resolve()).then(addTabStops);
    window.addEventListener("resize", addTabStops);
});

// A button's name has the words that are seen on it.
document.querySelector(".search-button-field")?.removeAttribute("aria-label");
