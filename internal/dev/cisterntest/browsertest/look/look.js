// The faults of the page as it is shown now, as lines of text. Faults of one kind and of elements
// that differ only in their number share a line.

const faults = new Map();
const fault = (kind, e, what, text, pseudo, same = "") => {
  const key = [kind, path(e).replace(/:nth-of-type\(\d+\)/g, ""), pseudo ?? "", same].join(" ");
  if (faults.has(key)) faults.get(key).more++;
  else faults.set(key, { line: `${kind}: ${path(e)}${pseudo ?? ""}${text ? " " + quote(text) : ""}: ${what}`, more: 0 });
};

// probe converts colours. It is on the page only while the page is checked.
const probe = document.createElement("i");
probe.style.transition = "none";
const settle = async () => {
  await document.fonts.ready;
  // a script may redraw the page for another scheme
  for (let i = 0; i < 2; i++) await new Promise(requestAnimationFrame);
};

await settle();
document.documentElement.append(probe);
try {
  ring(document.documentElement); // ends the animations
  const pieces = textsOf(document.body);
  pieces.forEach(checkContrast);
  document.body.querySelectorAll("*").forEach(checkGenerated);
  checkCut(pieces);
  checkNames();
  
  checkClickable();
  checkFocus();
} finally {
  probe.remove();
}
return [...faults.values()].map((f) => f.line + (f.more ? ` (and ${f.more} more like it)` : ""));
