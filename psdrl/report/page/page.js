"use strict";
// Tables: a click on a heading sorts, a word in the box filters, a link on a number shows the runs behind it.
for (const table of document.querySelectorAll("table[data-name]")) {
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  const heads = Array.from(table.tHead.rows[0].cells);
  const box = document.querySelector(`input[data-table="${table.id}"]`);
  const all = document.querySelector(`button[data-table="${table.id}"]`);
  const count = document.getElementById(`count-${table.dataset.name}`);
  let picked = null;

  const show = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !((picked === null || picked.has(row.id)) && words.every((word) => text.includes(word)));
      row.classList.toggle("picked", picked !== null && picked.has(row.id));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
    all.hidden = shown === rows.length;
    sessionStorage.setItem(table.id, box.value);
  };
  box.value = sessionStorage.getItem(table.id) || "";
  box.addEventListener("input", show);
  all.addEventListener("click", () => { picked = null; box.value = ""; show(); });
  table.pick = (ids) => { picked = new Set(ids); box.value = ""; show(); };
  if (box.value) show();

  const value = (row, i) => {
    const cell = row.cells[i];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");  // empty cells last, in either order
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  heads.forEach((head, i) => head.firstElementChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const empty = (row) => value(row, i) === "";
    rows.sort((a, b) => (empty(a) || empty(b) ? 1 : down ? -1 : 1) * compare(value(a, i), value(b, i)));
    body.append(...rows);
  }));
}
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-runs]");
  const runs = document.getElementById("table-runs");
  if (link && runs) runs.pick(link.dataset.runs.split(" "));
});
