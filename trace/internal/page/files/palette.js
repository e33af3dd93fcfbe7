// Colours that colour-blind people can distinguish, in the light and the dark theme: after Okabe
// and Ito.

const hues = {
  light: ["#0b6fb3", "#d55e00", "#009e73", "#cc79a7", "#e09b00", "#56b4e9", "#8c6d31", "#7a5cc4", "#b8c400", "#3f4b5b"],
  dark: ["#4a9fd8", "#e8793a", "#2bb98f", "#d993bb", "#f0b43c", "#82c9f2", "#b3935a", "#a18ce0", "#cfd84a", "#8493a8"],
};
const grey = { light: "#a3a9b2", dark: "#6b7380" };

// Categories have the same colour in every recording.
const categoryHue = { parameter: 0, gradient: 1, activation: 2, "optimizer state": 3, input: 4, workspace: 5, other: -1, "not labelled": -1, "before the recording": -1 };

const darkMedia = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;

function isDark() {
  if (printing) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : darkMedia.matches;
}

function hue(i) {
  const mode = isDark() ? "dark" : "light";
  return i < 0 ? grey[mode] : hues[mode][i % hues[mode].length];
}

// colourOf returns the colour of a group. Categories and sizes have fixed colours.
function colourOf(groups, grouping, g) {
  if (groups.rest[g]) return hue(-1);
  if (grouping.categories) return hue(categoryHue[groups.names[g]] ?? -1);
  if (grouping.sizes) return hue([5, 0, 2, 4, 1, 3, 7][sizeNames.indexOf(groups.names[g])]);
  return hue(g);
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// inkOn returns black or white, whichever has the greater contrast with a colour: at least 4.5
// (WCAG 2.1).
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
}

// mix returns a mixture of two colours; part is the share of the first.
function mix(a, b, part) {
  const v = [1, 3, 5].map((i) => Math.round(parseInt(a.slice(i, i + 2), 16) * part + parseInt(b.slice(i, i + 2), 16) * (1 - part)));
  return `#${v.map((x) => x.toString(16).padStart(2, "0")).join("")}`;
}
