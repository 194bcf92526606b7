"use strict";
{
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const form = document.getElementById("controls"), count = document.getElementById("count");
  const heads = all("#matrix thead th"), lines = all("#matrix tbody tr");
  const clauses = new Map(all(".clause").map((each) => [each.id.slice("clause:".length), each]));
  const text = (each) => each.textContent.toLowerCase();
  const element = (id) => document.getElementById(id);

  // What the filters look at is read once: a page may have thousands of rows. One that holds gets its address and its class here.
  const rows = all("table.rows").flatMap((table) => {
    const section = table.closest(".implementation"), chapter = table.closest(".chapter");
    const dtypes = [...table.tHead.rows[0].cells].slice(1, -1).map((each) => each.textContent);
    return [...table.tBodies[0].rows].map((row) => {
      const clause = row.cells[0].textContent.trim(), norm = clauses.get(clause);
      if (!row.id) row.className = "h";
      row.id = section.id + clause;
      const finding = all(".finding", chapter).find((each) => each.dataset.row === row.id);
      const cells = [...row.cells].slice(1, -1), kinds = cells.map((each) => row.className || each.className);
      const words = [section.querySelector("h3"), row, norm, finding].filter(Boolean).map(text).join(" ");
      return { row, section, chapter, finding, dtypes, cells, kinds, words, level: norm?.dataset.level,
        name: chapter.id.slice(section.id.length) };
    });
  });

  const chosen = () => Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim().toLowerCase()]));

  const fits = (each, wanted) => {
    const kinds = each.kinds.filter((kind, at) => kind && (!wanted.dtype || each.dtypes[at] === wanted.dtype));
    return kinds.length > 0 && (!wanted.chapter || each.name === wanted.chapter)
      && (!wanted.level || each.level === wanted.level.toUpperCase())
      && (!wanted.verdict || kinds.includes(wanted.verdict))
      && (!wanted.failures || kinds.includes("f") || kinds.includes("x")) && each.words.includes(wanted.search);
  };

  const MANY = 60;
  const filter = () => {
    const wanted = chosen(), active = Object.values(wanted).some(Boolean);
    const shown = rows.filter((each) => fits(each, wanted));
    const kept = new Set(shown), sections = new Set(shown.map((each) => each.section)), chapters = new Set(shown.map((each) => each.chapter));
    for (const each of rows) {
      each.row.hidden = !kept.has(each);
      if (each.finding) each.finding.hidden = !kept.has(each);
      for (const [at, cell] of each.cells.entries()) cell.hidden = Boolean(wanted.dtype) && each.dtypes[at] !== wanted.dtype;
    }
    for (const table of all("table.rows")) {
      for (const head of [...table.tHead.rows[0].cells].slice(1, -1)) head.hidden = Boolean(wanted.dtype) && head.textContent !== wanted.dtype;
    }
    for (const each of all(".failure")) each.hidden = Boolean(wanted.dtype) && !each.id.endsWith(`/${wanted.dtype}`);
    for (const each of all(".implementation > .chapter")) each.hidden = active && !chapters.has(each);
    for (const each of all(".implementation")) each.hidden = active && !sections.has(each);
    for (const line of lines) line.hidden = active && element(line.dataset.of).hidden;
    for (const [at, head] of heads.entries()) {
      const away = head.className === "rotated" && Boolean(wanted.chapter) && head.textContent !== wanted.chapter;
      for (const row of [head.parentElement, ...lines]) row.cells[at].hidden = away;
    }
    if (active && shown.length <= MANY) for (const each of [...sections, ...chapters]) each.open = true;
    count.value = `${shown.length} of ${rows.length} clauses shown, of ${sections.size} implementation${sections.size === 1 ? "" : "s"}`;
  };

  // An address that is more exact than what there is leads to the nearest: NAME/CLAUSE/DTYPE, NAME/CLAUSE, NAME/.
  const place = (hash) => {
    const steps = hash.slice(1).split("/");
    for (let length = steps.length; length > 0; length -= 1) {
      const id = steps.slice(0, length).join("/"), found = element(id) ?? element(`${id}/`);
      if (id && found) return found;
    }
    return null;
  };

  const go = () => {
    const found = place(location.hash);
    for (const each of all(".here")) each.classList.remove("here");
    if (!found) return;
    if (found.closest("[hidden]")) { form.reset(); filter(); }
    for (let each = found; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (!found.matches(":target")) found.classList.add("here");
    found.scrollIntoView();
    if (!found.hasAttribute("tabindex")) found.tabIndex = -1;
    found.focus({ preventScroll: true });
  };

  const anchor = (within, id, what) => {
    const link = Object.assign(document.createElement("a"), { href: `#${id}`, className: "anchor", textContent: "#" });
    link.setAttribute("aria-label", `address of ${what}`);
    within.append(link);
  };

  // Links to each row are made when its table is first opened, and so cost no bytes of the page.
  const opened = ({ target }) => {
    if (!target.open || target.dataset.linked || !target.matches(".chapter")) return;
    target.dataset.linked = "yes";
    for (const row of all(":scope > .scroll > .rows > tbody > tr", target)) anchor(row.cells[0], row.id, row.cells[0].textContent.trim());
    for (const each of all(".failure", target)) anchor(each.querySelector(".message") ?? each, each.id, "this failure");
    for (const each of all(":scope > .clause", target)) anchor(each.querySelector("h4"), each.id, each.querySelector("h4").textContent);
  };

  const copying = (source) => {
    const box = Object.assign(document.createElement("div"), { className: "command" });
    source.replaceWith(box);
    box.append(source);
    const button = Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "copy" });
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "selected";
      }
    });
    box.append(button);
  };

  const folder = decodeURIComponent(location.pathname).replace(/\/[^/]*$/, "");
  if (location.protocol === "file:" && /^[\w./+-]+$/.test(folder)) {
    for (const each of all(".case-again")) {
      each.querySelector("i").textContent = folder;
      each.classList.add("filled");
    }
  }
  for (const each of all("pre")) copying(each);
  for (const each of all("#matrix .cell > *")) each.title = each.getAttribute("aria-label");
  for (const each of all("details.chapter")) { each.addEventListener("toggle", opened); opened({ target: each }); }
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  addEventListener("hashchange", go);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    if (link && link.hash === location.hash) go(); // an address that is there already changes nothing
  });
  filter();
  go();
  document.documentElement.dataset.ready = "yes";
}
