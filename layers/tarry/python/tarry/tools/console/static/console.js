// The script of all pages: live parts, keys, forms. Everything but live parts also works without it.
"use strict";

(() => {
  const csrf = document.querySelector('meta[name="csrf"]')?.content ?? "";

  // Forms in live parts are the same for all browsers, so they come without a token.
  function addTokens(root) {
    for (const field of root.querySelectorAll('input[name="csrf"]')) {
      if (!field.value) field.value = csrf;
    }
  }

  // live parts

  let stream = null;
  let streamed = "";

  function topics() {
    const found = new Set([...document.querySelectorAll("[data-live]")].map((each) => each.dataset.live));
    return [...found].sort();
  }

  function listen() {
    const wanted = document.hidden ? [] : topics();
    const query = wanted.map((topic) => "topic=" + encodeURIComponent(topic)).join("&");
    if (query === streamed && (stream === null || stream.readyState !== EventSource.CLOSED)) return;
    // A browser opens only six connections to a host: hidden tabs give theirs back.
    stream?.close();
    stream = null;
    streamed = query;
    if (!query) return;
    stream = new EventSource("/live?" + query);
    stream.onmessage = (event) => show(JSON.parse(event.data));
    stream.onopen = () => setOffline(false);
    stream.onerror = () => setOffline(true);
  }

  function setOffline(is) {
    const text = document.getElementById("offline");
    if (text) text.hidden = !is;
    for (const part of document.querySelectorAll("[data-online]")) part.hidden = is;
  }

  const waiting = new Map(); // of parts that are paused: the last event of each

  function show({ topic, html }) {
    for (const part of document.querySelectorAll(`[data-live="${CSS.escape(topic)}"]`)) {
      if (part.closest("[data-paused]")) {
        waiting.set(part, { topic, html });
        continue;
      }
      const place = placeOfFocus(part);
      const marked = part.querySelector("[data-row].here")?.dataset.row;
      replaceContent(part, html);
      const row = marked && rowNamed(part, marked);
      if (row) mark(row);
      focusPlace(part, place);
      addTokens(part);
      if (window.htmx) window.htmx.process(part);
    }
  }

  // Rows that have not changed stay the same elements, so that a click on one is not lost.
  function replaceContent(part, html) {
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const before = new Map([...part.querySelectorAll("[data-row]")].map((row) => [row.dataset.row, row]));
    for (const row of fresh.content.querySelectorAll("[data-row]")) {
      const same = before.get(row.dataset.row);
      if (same && same.outerHTML === row.outerHTML) row.replaceWith(same);
    }
    part.replaceChildren(fresh.content);
  }

  // The focus of the keyboard survives that a part is replaced: elements are found again by id or data-row.
  function placeOfFocus(part) {
    const focused = document.activeElement;
    if (!focused || !part.contains(focused)) return null;
    return { id: focused.id, href: focused.getAttribute("href"), row: focused.closest("[data-row]")?.dataset.row };
  }

  function focusPlace(part, place) {
    if (place === null) return;
    const row = place.row && rowNamed(part, place.row);
    const found = (place.id && part.querySelector("#" + CSS.escape(place.id))) ||
      (place.href && (row || part).querySelector(`[href="${CSS.escape(place.href)}"]`)) || (row && target(row));
    if (found) focusOn(found);
  }

  function focusOn(element) {
    if (element.dataset.row !== undefined) element.tabIndex = -1;  // a row without a link
    element.focus({ preventScroll: true });
  }

  // rows

  function rows() {
    return [...document.querySelectorAll("[data-row]")].filter((each) => each.offsetParent !== null);
  }

  function rowNamed(part, name) {
    return [...part.querySelectorAll("[data-row]")].find((each) => each.dataset.row === name);
  }

  function target(row) {
    return row.querySelector("[data-open]") ?? row.querySelector("a[href]") ?? row;
  }

  function mark(row) {
    for (const each of document.querySelectorAll("[data-row].here")) each.classList.remove("here");
    row.classList.add("here");
  }

  function current() {
    return document.activeElement?.closest("[data-row]") ?? document.querySelector("[data-row].here");
  }

  function move(by) {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(current());
    const row = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
    mark(row);
    focusOn(target(row));
    row.scrollIntoView({ block: "nearest" });
  }

  function select() {
    const box = current()?.querySelector('input[type="checkbox"]');
    if (box) box.click();
  }

  // A field with suggestions below it: arrows choose one, Enter takes it; Escape closes them, a second one leaves the field.

  const SUGGESTED = '[role="option"]';

  function suggestions(field) {
    const list = document.getElementById(field.getAttribute("aria-controls") ?? "");
    return list ? [...list.querySelectorAll(SUGGESTED)] : [];
  }

  function suggest(field, by) {
    const all = suggestions(field);
    if (!all.length) return false;
    const at = all.findIndex((each) => each.getAttribute("aria-selected") === "true") + by;
    const next = all[at < 0 ? all.length - 1 : at % all.length];
    for (const each of all) each.setAttribute("aria-selected", String(each === next));
    field.setAttribute("aria-activedescendant", next.id);
    next.scrollIntoView({ block: "nearest" });
    return true;
  }

  function closeSuggestions(field) {
    for (const each of suggestions(field)) each.remove();
    field.removeAttribute("aria-activedescendant");
    field.setAttribute("aria-expanded", "false");
  }

  function take(field, option) {
    field.value = option.dataset.text;
    if (option.dataset.complete !== undefined) {
      field.form.requestSubmit();
    } else {
      field.focus();
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  function pressInSuggestions(event, field) {
    const chosen = suggestions(field).find((each) => each.getAttribute("aria-selected") === "true");
    if (event.key === "Escape" && suggestions(field).length) {
      closeSuggestions(field);
    } else if (event.key === "Enter" && chosen) {
      take(field, chosen);
    } else if (event.key !== "ArrowDown" && event.key !== "ArrowUp") {
      return false;
    } else if (!suggest(field, event.key === "ArrowDown" ? 1 : -1)) {
      return false;
    }
    event.preventDefault();
    return true;
  }

  // keys

  const ACTIONS = { j: () => move(1), k: () => move(-1), x: select, g: () => location.assign("/") };

  function isTyping(element) {
    if (!element) return false;
    if (element.isContentEditable || element.matches("textarea, select")) return true;
    return element.matches("input") && !["checkbox", "radio", "button", "submit"].includes(element.type);
  }

  function press(key) {
    const inRow = current()?.querySelector(`[data-key="${CSS.escape(key)}"]`);
    const found = inRow ?? document.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (!found || found.disabled) return false;
    if (isTyping(found)) {
      found.focus();
      if (found.select) found.select();
    } else {
      found.click();
    }
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.matches('[role="combobox"]') && pressInSuggestions(event, event.target)) return;
    if (event.key === "Escape" && isTyping(document.activeElement)) {
      document.activeElement.blur();
      return;
    }
    if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && event.target === document.body && current()) {
      target(current()).click();
      event.preventDefault();
    } else if (event.key in ACTIONS) {
      ACTIONS[event.key]();
      event.preventDefault();
    } else if (event.key.length === 1 && press(event.key)) {
      event.preventDefault();
    }
  });

  document.addEventListener("focusin", (event) => {
    const row = event.target.closest?.("[data-row]");
    if (row) mark(row);
  });

  // clicks

  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-opens]");
    if (opener) document.getElementById(opener.dataset.opens)?.showModal();
    const option = event.target.closest(SUGGESTED);
    if (option) take(document.querySelector(`[aria-controls="${option.parentElement.id}"]`), option);
    const copier = event.target.closest("[data-copies], [data-copies-from]");
    if (copier) copy(copier);
  });

  // Copies an element, or a file of the console: a page shows control characters as escapes, a file has the characters.
  async function copy(button) {
    const before = button.dataset.before ?? button.textContent;
    button.dataset.before = before;
    button.setAttribute("aria-live", "polite");
    try {
      let text = document.getElementById(button.dataset.copies ?? "")?.textContent ?? "";
      if (button.dataset.copiesFrom) {
        const answer = await fetch(button.dataset.copiesFrom);
        if (!answer.ok) throw new Error(`status ${answer.status}`);
        text = await answer.text();
      }
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    setTimeout(() => { button.textContent = before; }, 3000);
  }

  // Checkbox of a table's head: selects all rows of the page. Rows show that they are selected.
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (!box.matches?.('input[type="checkbox"]')) return;
    if (box.dataset.pauses !== undefined) {
      document.getElementById(box.dataset.pauses)?.toggleAttribute("data-paused", box.checked);
      if (!box.checked) for (const [part, event] of waiting) if (waiting.delete(part)) show(event);
      return;
    }
    if (box.dataset.selects !== undefined) {
      for (const each of document.querySelectorAll(`input[type="checkbox"][name="${CSS.escape(box.dataset.selects)}"]`)) {
        each.checked = box.checked;
        each.closest("[data-row]")?.classList.toggle("selected", box.checked);
      }
    } else {
      box.closest("[data-row]")?.classList.toggle("selected", box.checked);
    }
    const count = document.querySelectorAll('[data-row] input[type="checkbox"]:checked').length;
    for (const each of document.querySelectorAll("[data-selected-count]")) each.textContent = count;
  });

  document.addEventListener("visibilitychange", listen);
  document.addEventListener("htmx:afterSettle", () => {
    addTokens(document);
    listen();
    for (const field of document.querySelectorAll('[role="combobox"]')) {
      field.setAttribute("aria-expanded", String(suggestions(field).length > 0));
      field.removeAttribute("aria-activedescendant");
    }
  });
  document.addEventListener("htmx:beforeRequest", () => { document.getElementById("problem")?.replaceChildren(); });
  document.addEventListener("htmx:sendError", () => setOffline(true));
  window.addEventListener("pagehide", () => { stream?.close(); stream = null; streamed = ""; });
  window.addEventListener("pageshow", listen);

  addTokens(document);
  listen();
})();
