// What the page asks, and the link that keeps it.

export const LARGEST = 50;
export const rounded = (value) => Math.round(Math.max(-LARGEST, Math.min(LARGEST, value)) * 100) / 100;

export const fresh = (name, kind, seed = 0) => ({
  kind: name,
  rows: words(kind.rows.example),
  columns: kind.columns ? words(kind.columns.example) : [],
  k: kind.takes_k ? 2 : 1,
  scores: kind.scores,
  seed,
  wanted: [],
});

export const words = (text) => text.split(/\s+/).filter(Boolean);

const DIALS = ["temperature", "alpha", "step"];

/** Entries are parted by commas, rows by semicolons, grids by underscores; a cell without a part is empty. */
export const toHash = (state) => {
  const numbers = (grid) => grid.map((row) => row.map((value) => (value === null ? "" : value)).join(",")).join(";");
  const fields = {
    kind: state.kind,
    rows: state.rows.map(encodeURIComponent).join("+"),
    columns: state.columns.map(encodeURIComponent).join("+"),
    k: state.k,
    seed: state.seed,
    ...Object.fromEntries(DIALS.map((name) => [name, state[name]])),
    wanted: state.wanted.map((cell) => cell.join(",")).join(";"),
    scores: (state.scores || []).map(numbers).join("_"),
  };
  return Object.entries(fields)
    .filter(([, value]) => value !== "")
    .map(([name, value]) => `${name}=${value}`)
    .join("&");
};

/** The state of a link, or null if it has none. The server checks what it says. */
export const fromHash = (hash) => {
  const given = Object.fromEntries(
    hash.replace(/^#/, "").split("&").map((pair) => [pair.split("=")[0], pair.slice(pair.indexOf("=") + 1)]),
  );
  if (!given.kind) return null;
  const list = (text, mark) => (text ? text.split(mark) : []);
  const named = (text) => list(text, "+").map(decoded);
  const row = (text) => text.split(",").map((entry) => (entry === "" ? null : Number(entry)));
  const grid = (text) => text.split(";").map(row);
  return {
    kind: given.kind,
    rows: named(given.rows),
    columns: named(given.columns),
    k: Number(given.k || 1),
    seed: Number(given.seed || 0),
    ...Object.fromEntries(DIALS.filter((name) => name in given).map((name) => [name, Number(given[name])])),
    wanted: list(given.wanted, ";").map((cell) => cell.split(",").map(Number)),
    scores: given.scores ? given.scores.split("_").map(grid) : null,
  };
};

const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};
