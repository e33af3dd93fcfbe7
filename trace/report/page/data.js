// The page's data: a line of JSON, and after it columns of numbers, compressed (encode.go).

async function loadData() {
  const text = atob($("data").textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const all = new Uint8Array(await new Response(stream).arrayBuffer());
  const line = all.indexOf(10);
  const header = JSON.parse(new TextDecoder().decode(all.subarray(0, line)));
  const body = Math.ceil((line + 1) / 8) * 8;
  for (const r of header.recordings) unpack(r, all.buffer, body);
  return header;
}

// unpack replaces the descriptions of a recording's columns by the columns.
function unpack(r, buffer, body) {
  for (const [name, c] of Object.entries(r.columns)) {
    if (c.type === "f8") {
      r[name] = new Float64Array(buffer, body + c.at, c.n);
      continue;
    }
    const list = new Int32Array(buffer, body + c.at, c.n);
    if (c.type === "k4") {
      r[name] = Float64Array.from(list, (v) => v * 512);
      continue;
    }
    if (c.type === "d4") for (let i = 1; i < list.length; i++) list[i] += list[i - 1];
    r[name] = list;
  }
  r.blocks = r.alloc.length;
  r.requested = Float64Array.from(r.size, (size, i) => size - r.slack[i]);
  if (r.time) r.time = Float64Array.from(r.time, (t) => t * r.timeUnit); // µs
  r.free = r.life.map((life, i) => r.alloc[i] + life);
  r.done = r.wait.map((wait, i) => r.free[i] + wait);
  for (const name of ["notes", "streams", "modules", "tags", "owners", "frames", "stacks", "sites", "ooms", "marks", "kept", "whatIf", "profiles"]) r[name] ||= [];
  r.steps.names ||= [];
  r.steps.shares ||= [];
  r.steps.count = (r.steps.columns.step || []).length;
}
