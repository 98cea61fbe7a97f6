// A chapter comes before the glossary, and both come before pages of code. The other scores are Sphinx's own.
var Scorer = {
    score: ([page, , , , score]) =>
        /^notebooks\/(\d\d|[a-z]\d)_/.test(page) ? score + 20 : score + 10 * (page === "notebooks/glossary"),
    objNameMatch: 11,
    objPartialMatch: 6,
    objPrio: { 0: 15, 1: 5, 2: -5 },
    objPrioDefault: 0,
    title: 15,
    partialTitle: 7,
    term: 5,
    partialTerm: 2,
};
