// Text against its background: WCAG 2.1's contrast, with one bar for small and large text.

const bar = 4.5;

// rgba returns a colour of CSS as numbers from 0 to 1. The browser converts it to sRGB.
const colours = new Map();
const rgba = (colour) => {
  if (!colours.has(colour)) {
    probe.style.color = `color(from ${colour} srgb r g b / alpha)`;
    const [r, g, b, a] = styleOf(probe).color.match(/[-+.\de]+(?=[\s)])/g).map(Number);
    colours.set(colour, [r, g, b, a ?? 1]);
  }
  return colours.get(colour);
};
const over = (front, back, alpha = front[3]) => [0, 1, 2].map((i) => alpha * front[i] + (1 - alpha) * back[i]);
const luminance = (c) => {
  const [r, g, b] = c.map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => {
  const [x, y] = [luminance(a), luminance(b)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
};
const hex = (c) => "#" + c.map((x) => Math.round(Math.min(1, Math.max(0, x)) * 255).toString(16).padStart(2, "0")).join("");

// paint draws the backgrounds of nested elements, the outermost first, then the layers on top, each
// {colour, alpha}, with the opacities of the elements as groups.
const paint = (chain, back, layers) => {
  if (!chain.length) return layers.reduce((c, l) => over(rgba(l.colour), c, rgba(l.colour)[3] * l.alpha), back);
  const s = styleOf(chain[0]), shape = chain[0] instanceof SVGElement && chain[0].localName !== "svg";
  const own = shape ? back : over(rgba(s.backgroundColor), back);
  return over(paint(chain.slice(1), own, layers), back, Number(s.opacity));
};

const plain = (fill) => fill !== "none" && !fill.startsWith("url(");

// shapesOf returns the visible filled shapes of an SVG image, with their boxes.
const images = new Map();
const shapesOf = (svg) => {
  if (!images.has(svg)) {
    const shapes = [...svg.querySelectorAll("rect, circle, ellipse, path, polygon")]
      .filter((e) => !e.closest("defs, clipPath, mask, pattern") && visible(e) && plain(styleOf(e).fill));
    images.set(svg, shapes.map((e) => ({ e, s: styleOf(e), box: e.getBoundingClientRect() })));
  }
  return images.get(svg);
};

// shapesUnder returns the fills of the shapes that are drawn before an element of an SVG image, at
// a point of the window.
const shapesUnder = (e, x, y) => {
  const shared = parents(e), fills = [];
  for (const { e: shape, s, box } of shapesOf(shared.findLast((a) => a.localName === "svg"))) {
    if (x < box.left || x > box.right || y < box.top || y > box.bottom) continue;
    if (!(shape.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
    if (!shape.isPointInFill(new DOMPoint(x, y).matrixTransform(shape.getScreenCTM().inverse()))) continue;
    const opacity = parents(shape).filter((a) => !shared.includes(a)).reduce((o, a) => o * Number(styleOf(a).opacity), 1);
    fills.push({ colour: s.fill, alpha: Number(s.fillOpacity) * opacity });
  }
  return fills;
};

// backs returns the fills below a text, at its ends and in its middle. Background images and
// canvases are ignored.
const backs = (piece) => {
  if (!(piece.e instanceof SVGElement)) return [[]];
  return piece.lines.flatMap(({ left, right, top, bottom }) =>
    [0.02, 0.5, 0.98].map((f) => shapesUnder(piece.e, left + f * (right - left), (top + bottom) / 2)));
};

const checkContrast = (piece) => {
  const { e, text, pseudo } = piece, s = styleOf(e, pseudo), svg = e instanceof SVGElement;
  if (svg && !plain(s.fill)) return;
  const ink = svg
    ? { colour: s.fill, alpha: Number(s.fillOpacity) }
    : { colour: s.webkitTextFillColor, alpha: pseudo ? Number(s.opacity) : 1 };
  probe.style.color = "Canvas";
  const canvas = styleOf(probe).color, chain = parents(e).reverse();
  let worst = null;
  for (const under of backs(piece)) {
    if (pseudo && pseudo !== "::placeholder") under.push({ colour: s.backgroundColor, alpha: ink.alpha });
    const back = paint(chain, rgba(canvas), under), front = paint(chain, rgba(canvas), [...under, ink]);
    const r = ratio(front, back);
    if (!worst || r < worst.r) worst = { r, front, back };
  }
  if (worst.r < bar) {
    const both = `${hex(worst.front)} on ${hex(worst.back)}`, figure = (Math.floor(worst.r * 100) / 100).toFixed(2);
    fault("contrast", e, `${both} is ${figure}:1, below ${bar}:1`, text, pseudo, both);
  }
};

// checkGenerated checks texts of ::before and ::after.
const checkGenerated = (e) => {
  for (const pseudo of ["::before", "::after"]) {
    const s = styleOf(e, pseudo), text = s.content.match(/^"(.*?)"(?: \/|$)|^(?:counter|counters|attr)\(.*/)?.[0] ?? "";
    if (s.display === "none" || s.visibility === "hidden" || text.replaceAll('"', "").trim() === "" || !visible(e)) continue;
    checkContrast({ e, text, pseudo, lines: [] });
  }
};
