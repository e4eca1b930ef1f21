"use strict";
(function () {
  const form = document.getElementById("form");
  const said = document.getElementById("said");
  const fields = Array.from(form.elements).filter((field) => field.name);
  let shown = null;
  let asked = 0;
  let search = null;

  function values() {
    const taken = {};
    fields.forEach((field) => {
      if (field.value.trim() !== "") taken[field.name] = field.value.trim();
    });
    return taken;
  }

  function share() {
    const words = new URLSearchParams(values());
    history.replaceState(null, "", "?" + words.toString());
  }

  function tell(failure) {
    document.querySelectorAll(".wrong").forEach((place) => (place.textContent = ""));
    fields.forEach((field) => field.removeAttribute("aria-invalid"));
    if (!failure) return;
    const place = document.querySelector('.wrong[data-of="' + failure.field + '"]') || document.querySelector('.wrong[data-of=""]');
    place.textContent = failure.message;
    if (failure.field && form.elements[failure.field]) form.elements[failure.field].setAttribute("aria-invalid", "true");
  }

  function show(answer) {
    tell(answer.failure);
    if (answer.failure) return;
    shown = answer.id;
    document.getElementById("result").innerHTML = answer.content;
    document.getElementById("report").disabled = document.getElementById("json").disabled = false;
    document.getElementById("export").disabled = !answer.plan;
    window.dressPage();
  }

  async function post(path, body) {
    const reply = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const text = await reply.text();
    try {
      return JSON.parse(text);
    } catch {
      return { failure: { field: "", message: "the server answered " + reply.status } };
    }
  }

  async function estimate() {
    const number = ++asked;
    said.textContent = "estimating";
    let answer;
    try {
      answer = await post("estimate", values());
    } catch (error) {
      answer = { failure: { field: "", message: "the server does not answer: is it still running?" } };
    }
    if (number !== asked) return;
    said.textContent = answer.failure ? "" : "estimated in " + answer.seconds.toFixed(2) + " s";
    show(answer);
  }

  function working(on) {
    document.getElementById("search").disabled = on;
    document.getElementById("cancel").disabled = !on;
  }

  async function follow(id) {
    while (search === id) {
      const state = await (await fetch("search/" + id)).json();
      if (search !== id) return;
      if (state.state !== "running") {
        search = null;
        working(false);
        said.textContent = state.state === "cancelled" ? "cancelled" : state.failure ? "" : "found in " + state.seconds.toFixed(1) + " s";
        if (state.state !== "cancelled") show(state);
        return;
      }
      said.textContent = "searching: " + state.seconds.toFixed(0) + " s" + (state.said ? ", " + state.said : "");
      await new Promise((go) => setTimeout(go, 250));
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    asked += 1;
    share();
    working(true);
    said.textContent = "searching";
    const begun = await post("search", values());
    if (begun.failure) {
      working(false);
      said.textContent = "";
      tell(begun.failure);
      return;
    }
    search = begun.id;
    follow(begun.id);
  });

  document.getElementById("cancel").addEventListener("click", () => search && post("search/" + search + "/cancel", {}));

  let waiting = 0;
  form.addEventListener("input", () => {
    share();
    clearTimeout(waiting);
    waiting = setTimeout(estimate, 250);
  });

  function download(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text]));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  async function fetched(path, name) {
    const reply = await fetch("result/" + shown + "/" + path);
    if (reply.ok) download(name, await reply.text());
  }

  document.getElementById("report").addEventListener("click", () => fetched("report.html", "cellplan.html"));
  document.getElementById("json").addEventListener("click", () => fetched("answer.json", "cellplan.json"));
  document.addEventListener("click", (event) => {
    if (event.target.id === "save" && shown !== null) fetched("answer.json", "cellplan.json");
  });
  document.getElementById("export").addEventListener("click", async () => {
    const answer = await post("result/" + shown + "/export", { to: document.getElementById("to").value });
    tell(answer.failure);
    (answer.files || []).forEach((file) => download(file.name, file.text));
  });

  new URLSearchParams(location.search).forEach((value, name) => {
    if (form.elements[name]) form.elements[name].value = value;
  });
  estimate();
})();
