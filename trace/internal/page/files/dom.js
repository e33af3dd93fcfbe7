// All elements are made here. Text becomes text nodes, so that nothing in a recording is ever
// markup.

function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [p, v] of Object.entries(value)) e.style.setProperty(p, v);
    else e.setAttribute(name, value === true ? "" : String(value));
  }
  append(e, children);
  return e;
}

function append(e, children) {
  for (const c of children.flat(Infinity)) {
    if (c === undefined || c === null || c === false) continue;
    e.append(c instanceof Node ? c : document.createTextNode(String(c)));
  }
}

function replace(e, ...children) {
  e.replaceChildren();
  append(e, children);
}

// listen adds a listener to an element that other recordings use, too. stopListening removes all
// listeners before another recording is shown.
let listening = new AbortController();

function listen(target, type, f) { target.addEventListener(type, f, { signal: listening.signal }); }

function stopListening() {
  listening.abort();
  listening = new AbortController();
}

const $ = (id) => document.getElementById(id);

// canvasFor sizes a canvas for the screen's pixels, and returns a context in CSS pixels.
function canvasFor(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.height = `${height}px`;
  const c = canvas.getContext("2d");
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, height);
  return c;
}

// tip is the one tooltip.
const tip = {
  show(x, y, ...children) {
    const t = $("tip");
    replace(t, ...children);
    t.hidden = false;
    const w = t.offsetWidth, h = t.offsetHeight, room = document.documentElement.clientWidth;
    t.style.left = `${Math.max(8, Math.min(x + 14, room - w - 8))}px`;
    t.style.top = `${y + h + 24 > window.innerHeight ? Math.max(8, y - h - 12) : y + 16}px`;
  },
  hide() { $("tip").hidden = true; },
};

// row returns a line of a tooltip: a name and a value.
const row = (what, value) => el("div", { class: "pair" }, el("span", {}, what), el("b", {}, value));
