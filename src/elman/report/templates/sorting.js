// A click on a header sorts its table: by numbers and their units where a column begins with them.
const units = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
const number = text => {
  const [, digits, unit] = text.match(/^[≥≤<>]?\s*([-+\d.,]+(?:e[-+]?\d+)?)\s*(\S*)/) ?? [];
  return digits ? parseFloat(digits.replace(/,/g, "")) * (units[unit] ?? 1) : NaN;
};
for (const head of document.querySelectorAll("table.sorts th")) head.onclick = () => {
  const table = head.closest("table"), at = head.cellIndex;
  const up = head.getAttribute("aria-sort") === "descending";
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const text = row => row.cells[at]?.textContent.trim() ?? "";
  const value = row => number(text(row));
  const rows = [...table.rows].slice(1).sort((a, b) => {
    const x = value(a), y = value(b);
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || text(a).localeCompare(text(b));
    return x - y;
  });
  if (!up) rows.reverse();
  const known = rows.filter(row => !/^–?$/.test(text(row)));
  const empty = rows.filter(row => /^–?$/.test(text(row)));
  table.tBodies[0].append(...known, ...empty);
};
