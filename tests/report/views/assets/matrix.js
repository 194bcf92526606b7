"use strict";
{
  const form = document.getElementById("controls"), count = document.getElementById("count");
  const items = [...document.querySelectorAll(".item")].map((item) => ({ item, words: item.textContent.toLowerCase() }));

  const filter = () => {
    const given = new FormData(form), search = (given.get("search") ?? "").trim().toLowerCase();
    const verdict = given.get("verdict") ?? "";
    for (const each of items) {
      each.item.hidden = !each.words.includes(search) || Boolean(verdict) && each.item.dataset.verdict !== verdict;
    }
    const counted = items.filter((each) => each.item.matches("tr, .clause"));
    count.value = `${counted.filter((each) => !each.item.hidden).length} of ${counted.length} shown`;
    const address = new URL(location.href);
    for (const name of ["search", "verdict"]) {
      address.searchParams.delete(name);
      if (given.get(name)) address.searchParams.set(name, given.get(name));
    }
    history.replaceState(null, "", address);
  };

  // What is shown can be linked to.
  for (const [name, value] of new URLSearchParams(location.search)) {
    if (form.elements[name]) form.elements[name].value = value;
  }
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();
}
