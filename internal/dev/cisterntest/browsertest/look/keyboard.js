// Each part that can be clicked takes the focus, and the focus is visible.

const clickRoles = ["button", "link", "menuitem", "tab", "checkbox", "radio", "switch", "option", "treeitem", "slider"];
const composite = "[role=tree], [role=treegrid], [role=grid], [role=listbox], [role=menu], [role=tablist], [role=radiogroup], [role=toolbar]";

// roving reports whether arrow keys lead to an element: it is in a group of which one element is
// focusable at a time.
const roving = (e) => e.getAttribute("tabindex") === "-1" &&
  [...(e.closest(composite) ?? e.parentElement).querySelectorAll("[tabindex='0']")].some(visible);
const operable = (e) => focusable(e) || roving(e);

const checkClickable = () => {
  for (const e of document.body.querySelectorAll("*")) {
    const role = e.getAttribute("role"), pointer = styleOf(e).cursor === "pointer" && styleOf(e.parentElement).cursor !== "pointer";
    let why = pointer ? "has a pointer as cursor" : "";
    if (clickRoles.includes(role)) why = `has the role ${role}`;
    if (e.onclick) why = "has a click handler";
    if (!why || e.matches(":disabled, [aria-disabled=true]") || !visible(e) || (e.control && focusable(e.control))) continue;
    if (parents(e).some(operable) || [...e.querySelectorAll(focusableTags)].some(operable)) continue;
    fault("keyboard", e, `${why} and cannot have the focus`, e.textContent.trim());
  }
};

const clear = (colour) => rgba(colour)[3] === 0;

// ring returns the part of an element's style that can show the focus, after all animations.
const ring = (e) => {
  for (const a of document.getAnimations()) {
    if (a.effect?.getComputedTiming().endTime === Infinity) a.cancel();
    else a.finish();
  }
  const s = styleOf(e), outlined = s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0 && !clear(s.outlineColor);
  const outline = outlined ? [s.outlineStyle, s.outlineWidth, s.outlineColor] : [];
  const borders = ["Top", "Right", "Bottom", "Left"].map((side) => s[`border${side}Style`] + s[`border${side}Width`] + s[`border${side}Color`]);
  return [...outline, s.boxShadow, ...borders].join(" ");
};

// checkFocus gives each element the focus. A skip link, which comes into the window only with the
// focus, is checked there.
const checkFocus = () => {
  for (const e of document.querySelectorAll(focusableTags)) {
    if (!focusable(e) || !visible(e)) continue;
    const before = ring(e), away = e.getBoundingClientRect().right <= 0;
    e.focus({ preventScroll: true, focusVisible: true });
    if (document.activeElement === document.body) fault("keyboard", e, "does not take the focus", e.textContent.trim());
    else if (document.activeElement === e) {
      if (ring(e) === before) fault("focus", e, "looks the same with the focus: no outline, shadow or border", e.textContent.trim());
      for (const piece of away ? textsOf(e) : []) {
        checkContrast(piece);
        piece.lines.forEach((line) => place({ ...piece, focused: true }, line));
      }
    }
    document.activeElement.blur();
  }
};
