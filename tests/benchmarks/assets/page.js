"use strict";
{
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const specs = JSON.parse(document.getElementById("plots").textContent);
  const selects = all("select"), boxes = all("input[name=shown]"), search = document.getElementById("search");
  const results = document.getElementById("results"), body = results.tBodies[0];
  let views = [];

  const chosen = () => {
    const found = Object.fromEntries(selects.map((each) => [each.name, each.value]));
    return { ...found, shown: boxes.filter((each) => each.checked).map((each) => each.value) };
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const config = () => {
    const ink = colour("ink"), line = colour("line");
    const font = getComputedStyle(document.body).fontFamily;
    return {
      background: "transparent", font, view: { stroke: line },
      range: { category: [0, 1, 2, 3, 4, 5, 6, 7].map((number) => colour(`c${number}`)) },
      axis: { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal",
        gridColor: line, domainColor: line, tickColor: line },
      text: { color: ink, fontSize: 12 }, rule: { color: colour("faint") },
      line: { color: colour("faint") }, style: { noise: { color: colour("noise") } },
    };
  };

  const tell = () => {
    for (const view of views) {
      for (const [name, value] of Object.entries(chosen())) view.signal(name, value);
      view.runAsync();
    }
  };

  const parameters = () => Object.entries(chosen()).map(([name, value]) => ({ name, value }));

  const draw = async () => {
    document.documentElement.dataset.drawn = "";
    for (const view of views.splice(0)) view.finalize();
    const options = { actions: false, logLevel: 1, renderer: "svg", ast: true, config: config() };
    const params = parameters();
    const embed = ([id, spec]) => vegaEmbed(`#${id}`, { ...spec, params }, options);
    views = (await Promise.all(Object.entries(specs).map(embed))).map((each) => each.view);
    document.documentElement.dataset.drawn = "yes";
  };

  const filter = () => {
    const choice = chosen(), word = search.value.trim().toLowerCase();
    const fits = (data) => choice.shown.includes(data.implementation)
      && selects.every(({ name }) => !choice[name] || !(name in data) || data[name] === choice[name]);
    for (const row of all("[data-implementation]")) {
      const searched = row.parentElement !== body || row.textContent.toLowerCase().includes(word);
      row.hidden = !(searched && fits(row.dataset));
    }
    for (const [id, spec] of Object.entries(specs)) {
      const plot = document.getElementById(id), any = spec.data.values.some(fits);
      plot.classList.toggle("empty", !any);
      plot.closest("section").querySelector(".nothing").hidden = any;
    }
    const rows = [...body.rows];
    const count = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows shown`;
    for (const each of all(".count")) each.value = count;
  };

  // What has no number comes last in either order.
  const compare = (column, down) => (one, other) => {
    const [a, b] = [one, other].map((row) => row.cells[column]);
    if (a.dataset.value === undefined) return (down ? -1 : 1) * a.textContent.localeCompare(b.textContent);
    const [empty, missing] = [a, b].map((cell) => cell.dataset.value === "");
    if (empty || missing) return empty - missing;
    return (down ? -1 : 1) * (Number(a.dataset.value) - Number(b.dataset.value));
  };

  const sort = (head) => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...[...body.rows].sort(compare(head.cellIndex, down)));
  };

  const changed = () => { filter(); tell(); };
  for (const each of [...selects, ...boxes]) each.addEventListener("change", changed);
  for (const each of all("button[data-all]")) {
    each.addEventListener("click", () => { for (const box of boxes) box.checked = Boolean(each.dataset.all); changed(); });
  }
  for (const each of all("thead button", results)) each.addEventListener("click", () => sort(each.closest("th")));
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  search.addEventListener("input", filter);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  filter();
  draw();
}
