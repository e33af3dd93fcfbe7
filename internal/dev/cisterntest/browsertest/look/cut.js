// Texts that are cut, that lie outside of the window, or that overlap.

const slack = 1, overlap = 2; // pixels
const wide = 1280; // a window in which nothing may scroll sideways
const clips = (overflow) => overflow === "hidden" || overflow === "clip";
const scrolls = (overflow) => overflow === "auto" || overflow === "scroll";
const reachable = (e) => focusable(e) || [...e.querySelectorAll(focusableTags)].some((x) => focusable(x) && visible(x));

// containers returns the ancestors that can clip an element: those that its containing blocks are
// in.
const containers = (e) => {
  const list = [];
  let position = "static";
  for (const a of parents(e)) {
    const s = styleOf(a);
    const holds = s.transform !== "none" || s.filter !== "none" || (s.contain !== "none" && s.contain !== "");
    if (!holds && (position === "fixed" || (position === "absolute" && s.position === "static"))) continue;
    list.push([a, s]);
    position = s.position;
  }
  return list;
};

// place follows a line of text outwards and reports what cuts it. It returns the part that is
// visible without scrolling an element, or null for a skip link. For invisible text, the part ends
// before it begins.
const place = (piece, line) => {
  const { e, text } = piece;
  let { left, right, top, bottom } = line;
  for (const [a, s] of containers(e)) {
    if (a === document.documentElement || a === document.body) continue;
    const box = inside(a), image = a.localName === "svg" && !a.parentElement?.closest("svg");
    const x = Math.max(box.left - left, right - box.right), y = Math.max(box.top - top, bottom - box.bottom);
    const how = a === e ? "its box" : path(a);
    if (x > slack && (clips(s.overflowX) || image)) fault("cut", e, `${px(x)} px of its width lie outside of ${how}`, text);
    else if (y > slack && (clips(s.overflowY) || image)) fault("cut", e, `${px(y)} px of its height lie outside of ${how}`, text);
    if (x > slack && scrolls(s.overflowX)) {
      const size = `${a.scrollWidth} px in ${a.clientWidth} px`;
      if (innerWidth >= wide) fault("cut", a, `scrolls sideways in a window of ${innerWidth} px: ${size}`, text);
      else if (!reachable(a)) fault("keyboard", a, `scrolls sideways and cannot be reached by keyboard: ${size}`, text);
    }
    if (y > slack && scrolls(s.overflowY) && !reachable(a)) {
      fault("keyboard", a, `scrolls and cannot be reached by keyboard: ${a.scrollHeight} px in ${a.clientHeight} px`, text);
    }
    if (s.overflowX !== "visible" || s.overflowY !== "visible") {
      [left, right] = [Math.max(left, box.left), Math.min(right, box.right)];
      [top, bottom] = [Math.max(top, box.top), Math.min(bottom, box.bottom)];
    }
  }
  if (left < -slack || right > innerWidth + slack) {
    // a skip link: see checkFocus
    if (right <= 0 && !piece.focused && parents(e).some(focusable)) return null;
    fault("cut", e, `lies from ${px(left)} to ${px(right)} px in a window of ${innerWidth} px`, text);
  }
  return { left, right, top, bottom };
};

// checkOwnBox reports an element that hides a part of its own content, also one with an ellipsis.
const checkOwnBox = ({ e, text }) => {
  const s = styleOf(e);
  if (e.localName === "select") {
    const needs = measure(text, s).width, has = e.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight);
    if (needs > has + slack) fault("cut", e, `the choice needs ${px(needs)} px and has ${px(has)} px`, text);
    return;
  }
  if (clips(s.overflowX) && e.scrollWidth > e.clientWidth + slack) {
    fault("cut", e, `shows ${e.clientWidth} px of its width of ${e.scrollWidth} px`, text);
  } else if (clips(s.overflowY) && e.scrollHeight > e.clientHeight + slack) {
    fault("cut", e, `shows ${e.clientHeight} px of its height of ${e.scrollHeight} px`, text);
  }
};

// floats reports whether an element is meant to overlap others.
const floats = (e) => parents(e).some((a) =>
  ["fixed", "sticky"].includes(styleOf(a).position) || a.matches("dialog, [popover], [role=tooltip], [role=dialog]"));

// checkOverlap reports overlapping texts of different elements.
const checkOverlap = (placed) => {
  placed = placed.filter((p) => !floats(p.e)).sort((a, b) => a.top - b.top);
  placed.forEach((a, i) => {
    for (const b of placed.slice(i + 1)) {
      if (b.top >= a.bottom - overlap) break;
      const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - b.top;
      if (x <= overlap || y <= overlap || a.e.contains(b.e) || b.e.contains(a.e)) continue;
      fault("overlap", a.e, `lies on ${path(b.e)} ${quote(b.text)} by ${px(x)} x ${px(y)} px`, a.text);
    }
  });
};

const checkCut = (pieces) => {
  const page = document.documentElement.scrollWidth;
  if (page > innerWidth) fault("cut", document.documentElement, `the page is ${page} px wide in a window of ${innerWidth} px`, "");
  const placed = [];
  for (const piece of pieces) {
    checkOwnBox(piece);
    for (const line of piece.lines) {
      const seen = place(piece, line);
      if (seen) placed.push({ ...seen, e: piece.e, text: piece.text });
    }
  }
  checkOverlap(placed);
};
