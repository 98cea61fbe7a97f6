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

// A menu that a click has opened goes when its page moves on.
window.addEventListener("scroll", () => {
    document.querySelectorAll(".article-header-buttons .dropdown-toggle.show").forEach((each) => each.click());
});

// A page that the search finds by its text leads to the section that has the words most often, and names it.
const ownText = (section) => [...section.children].filter((each) => each.tagName !== "SECTION")
    .map((each) => each.textContent).join(" ").toLowerCase();
const bestSection = (page, words) => {
    const count = (text) => words.reduce((sum, word) => sum + text.split(word).length - 1, 0);
    const counted = [...page.querySelectorAll(".bd-article section section")].map((each) => [count(ownText(each)), each]);
    return counted.reduce((best, each) => (each[0] > best[0] ? each : best), [0, null])[1];
};
if (typeof Search !== "undefined") {
    const summarize = Search.makeSearchSummary;
    Search.makeSearchSummary = (html, words, anchor) => {
        const summary = summarize(html, words, anchor);
        const section = anchor ? null : bestSection(new DOMParser().parseFromString(html, "text/html"), [...words]);
        if (summary && section) {
            section.querySelectorAll(".headerlink").forEach((each) => each.remove());
            queueMicrotask(() => {
                const link = summary.parentElement.querySelector("a");
                link.textContent += `: ${section.querySelector("h2, h3, h4").textContent}`;
                link.href += `#${section.id}`;
            });
        }
        return summary;
    };
}

// A button's name has the words that are seen on it.
document.querySelector(".search-button-field")?.removeAttribute("aria-label");
