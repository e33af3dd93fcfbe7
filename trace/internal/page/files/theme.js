// The theme: light, dark, or the system's. The browser stores a reader's choice.

function theme(redraw) {
  const button = $("theme"), names = { "": "system", light: "light", dark: "dark" };
  const set = (mode) => {
    if (mode) document.documentElement.dataset.theme = mode;
    else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${names[mode]}`;
  };
  let mode = "";
  try { mode = localStorage.getItem("cistern-theme") || ""; } catch { /* the browser keeps nothing for this page */ }
  if (!Object.hasOwn(names, mode)) mode = "";
  set(mode);
  button.onclick = () => {
    mode = { "": isDark() ? "light" : "dark", light: "dark", dark: "light" }[mode];
    if ((mode === "dark") === darkMedia.matches && document.documentElement.dataset.theme) mode = "";
    set(mode);
    try { localStorage.setItem("cistern-theme", mode); } catch { /* as above */ }
    redraw();
  };
  darkMedia.addEventListener("change", redraw);
}

// present calls show, which shows the page's data, and shows its error if it fails. redraw is
// called when the width, the theme or the medium changes.
async function present(show, redraw) {
  theme(() => redraw());
  let width = window.innerWidth;
  addEventListener("resize", () => {
    if (window.innerWidth !== width) (width = window.innerWidth), redraw();
  });
  for (const [type, on] of [["beforeprint", true], ["afterprint", false]]) addEventListener(type, () => { printing = on; redraw(); });
  try {
    $("main").classList.add("ready");
    await show();
    $("wait").remove();
    $("main").removeAttribute("aria-busy");
  } catch (e) {
    $("wait").textContent = `The data of this page can't be shown: ${e.message}`;
    throw e;
  }
}
