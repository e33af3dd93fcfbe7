// Names for users of screen readers.

const checkNames = () => {
  const root = document.documentElement, shown = (selector) => [...document.querySelectorAll(selector)].filter(visible);
  const headings = shown("h1");
  if (headings.length !== 1) fault("names", root, `has ${headings.length} headings h1 instead of one`, headings.map((h) => h.textContent.trim()).join(", "));
  if (!root.lang.trim()) fault("names", root, "has no lang attribute", "");
  if (!document.title.trim()) fault("names", root, "has no title", "");
  for (const e of shown("img, svg, canvas")) {
    if (e.closest("[aria-hidden=true], [role=presentation], [role=none]") || e.parentElement.closest("svg") || nameOf(e)) continue;
    if (e.hasAttribute("alt") || e.querySelector(":scope > title")?.textContent.trim()) continue;
    fault("names", e, "has no name: aria-label, title, or aria-hidden", "");
  }
  for (const e of shown("input, select, textarea, button, a[href]")) {
    const own = e.matches("button, a") ? e.textContent : buttons.includes(e.type) ? e.value : "";
    const labelled = [...(e.labels ?? [])].some((l) => l.textContent.trim());
    if (own.trim() || nameOf(e) || labelled || e.querySelector("[aria-label], [alt]:not([alt=''])")) continue;
    fault("names", e, "has no label", controlText(e)?.[0] ?? "");
  }
};
