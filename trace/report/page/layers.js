// The model by layers: each layer's own figures, without those of the layers inside.

function showLayers(page) {
  const list = (page.r.layers || []).map((l, number) => ({ ...l, number }));
  $("layers-section").hidden = list.length === 0;
  if (list.length === 0) return null;
  const depth = (l) => (l.name === "" ? 0 : l.name.split(".").length);
  const title = (l) => el("span", { title: l.name, style: { "padding-left": `${Math.min(depth(l), 8)}em` } }, words(l.name.slice(l.name.lastIndexOf(".") + 1) || "model"), l.type ? [" ", el("small", {}, words(l.type))] : "");
  const columns = [{ name: "layer", text: true, value: (l) => l.number, show: (l) => (l.sum ? "sum" : title(l)) },
    { name: "output", text: true, value: (l) => l.output || "", show: (l) => words(l.output || "") },
    { name: "own parameters", title: "elements of the layer itself, without those of the layers in it; tied weights count once", value: (l) => l.parameters, show: (l) => count(l.parameters) }];
  const sum = { sum: true, parameters: list.reduce((a, l) => a + l.parameters, 0) };
  for (const [name, key] of [["parameter bytes", "parameter_bytes"], ["activations", "activation_bytes"], ["gradients", "gradient_bytes"], ["optimiser", "state_bytes"], ["workspace", "workspace_bytes"]]) {
    sum[key] = list.reduce((a, l) => a + l[key], 0);
    columns.push({ name, value: (l) => l[key], show: (l) => (l[key] ? bytes(l[key]) : "–") });
  }
  const table = new Table($("layers"), columns, { descending: false, foot: sum, label: "the model by layers" });
  table.set(list);
  return table;
}
