// How the site's search ranks: Sphinx's own scores, guides before the reference, a heading before its page.
var Scorer = {
  score: ([page, title, anchor, description, score]) => score + (page.startsWith("guides/") ? 20 : 0) + (anchor ? 1 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
