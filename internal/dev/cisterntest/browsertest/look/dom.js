// The visible elements of the page, their texts, and the positions of the texts.

const styleOf = (e, pseudo) => getComputedStyle(e, pseudo);
const parents = (e) => {
  const chain = [];
  for (; e; e = e.parentElement) chain.push(e);
  return chain;
};
const quote = (text) => JSON.stringify(text.length > 60 ? text.slice(0, 57) + "…" : text);
const px = (n) => String(Math.round(n * 10) / 10);

// path returns a selector of an element, from the nearest ancestor with an id.
const path = (e) => {
  const parts = [];
  for (const x of parents(e)) {
    if (x.id) {
      parts.unshift("#" + CSS.escape(x.id));
      break;
    }
    const alike = x.parentElement ? [...x.parentElement.children].filter((y) => y.localName === x.localName) : [];
    const classes = [...x.classList].map((c) => "." + CSS.escape(c)).join("");
    parts.unshift(x.localName + classes + (alike.length > 1 ? `:nth-of-type(${alike.indexOf(x) + 1})` : ""));
  }
  return parts.join(" > ");
};

// forReaders reports whether an element is visible to screen readers only.
const forReaders = (e) => parents(e).some((x) => {
  const s = styleOf(x), r = x.getBoundingClientRect();
  return /^inset\((50|100)%/.test(s.clipPath) || /^rect\(0px,? 0px,? 0px,? 0px\)/.test(s.clip) ||
    (s.overflowX !== "visible" && (r.width <= 1 || r.height <= 1));
});
const seen = { opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true };
const visible = (e) => e.checkVisibility(seen) && !forReaders(e);

const pen = document.createElement("canvas").getContext("2d");
const measure = (text, s) => {
  pen.font = `${s.fontStyle} ${s.fontWeight} ${s.fontSize} ${s.fontFamily}`;
  return pen.measureText(text);
};

// inside returns the box of an element without its borders.
const inside = (e) => {
  const r = e.getBoundingClientRect(), left = r.left + (e.clientLeft ?? 0), top = r.top + (e.clientTop ?? 0);
  return { left, top, right: left + (e.clientWidth || r.width), bottom: top + (e.clientHeight || r.height) };
};

// ink narrows a line's box, which is as high as the font, to the height of its glyphs.
const ink = (r, text, s) => {
  const m = measure(text, s), font = m.fontBoundingBoxAscent + m.fontBoundingBoxDescent;
  // scaled or turned
  if (Math.abs(font - r.height) > 1.5) return { left: r.left, right: r.right, top: r.top, bottom: r.bottom };
  const base = r.top + m.fontBoundingBoxAscent;
  return { left: r.left, right: r.right, top: base - m.actualBoundingBoxAscent, bottom: base + m.actualBoundingBoxDescent };
};

const buttons = ["button", "submit", "reset"], noText = ["hidden", "checkbox", "radio", "range", "color", "file", "image"];

// controlText returns the text that a form control draws by itself, and the pseudo-element that has
// its style.
const controlText = (e) => {
  if (e.localName === "select") return [e.selectedOptions[0]?.label ?? "", null];
  if (e.localName === "textarea" || (e.localName === "input" && !noText.includes(e.type))) {
    const value = e.value || (e.type === "submit" ? "Submit" : e.type === "reset" ? "Reset" : "");
    return value || buttons.includes(e.type) ? [value, null] : [e.placeholder, "::placeholder"];
  }
  return null;
};

// textsOf returns the visible texts of an element and its descendants, each with its element and
// the boxes of its lines.
const textsOf = (root) => {
  const found = [];
  const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
  for (let n = root; n; n = walk.nextNode()) {
    if (n.nodeType === Node.ELEMENT_NODE) {
      const control = controlText(n);
      if (!control?.[0].trim() || !visible(n)) continue;
      found.push({ e: n, text: control[0].trim(), pseudo: control[1], lines: [inside(n)] });
      continue;
    }
    const e = n.parentElement, text = n.data.trim().replace(/\s+/g, " ");
    if (!text || !e || e.closest("select, textarea") || !visible(e)) continue;
    const range = document.createRange();
    range.selectNodeContents(n);
    const s = styleOf(e), boxes = [...range.getClientRects()].filter((r) => r.width > 0.5 && r.height > 0.5);
    const lines = boxes.map((r) => ink(r, text, s));
    if (lines.length) found.push({ e, text, pseudo: null, lines });
  }
  return found;
};

const focusableTags = "a[href], area[href], button, input:not([type=hidden]), select, textarea, summary, iframe, [contenteditable], [tabindex]";
const focusable = (e) => e.matches(focusableTags) && !e.matches(":disabled") && e.tabIndex >= 0;
const nameOf = (e) => {
  const by = (e.getAttribute("aria-labelledby") ?? "").split(/\s+/).map((id) => (id && document.getElementById(id)?.textContent) || "").join(" ");
  return [by, e.getAttribute("aria-label"), e.getAttribute("title")].map((s) => s?.trim()).find(Boolean) ?? "";
};
